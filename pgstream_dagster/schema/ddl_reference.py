"""The JSON Schema of the payload of `ddl` rows, generated from the structs of `ddl`."""

from __future__ import annotations

import inspect
import json
from typing import Any, Final

import msgspec

from pgstream_dagster.schema.ddl import DdlPayload

END_OF_RELATION: Final = {
    "title": "EndOfRelation",
    "description": (
        "The relation ends here: it is no longer published, or belongs to an earlier epoch, whose"
        " number `epoch` is."
    ),
    "type": "object",
    "properties": {"drop": {"const": True}, "epoch": {"type": "integer"}},
    "required": ["drop", "epoch"],
}
"""Of the marker `changelog/markers.drop`."""


def reference() -> str:
    """`docs/reference/ddl.schema.json`."""
    _, definitions = msgspec.json.schema_components([DdlPayload])
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:pgstream:ddl:1",
        "title": "The payload of a ddl row of the change log",
        "description": "Later versions only add members.",
        "oneOf": [{"$ref": "#/$defs/DdlPayload"}, {"$ref": "#/$defs/EndOfRelation"}],
        "$defs": _published(definitions) | {"EndOfRelation": END_OF_RELATION},
    }
    return json.dumps(schema, indent=2) + "\n"


def _published(node: Any) -> Any:
    """With the descriptions as they are read, and open for members of later versions."""
    if isinstance(node, list):
        return [_published(item) for item in node]
    if not isinstance(node, dict):
        return node
    members = {name: _published(item) for name, item in node.items()}
    if members.get("additionalProperties") is False:
        del members["additionalProperties"]
    if isinstance(text := members.get("description"), str):
        members["description"] = " ".join(inspect.cleandoc(text).split())
    return members
