"""Rules, tables and changes for the tests of modifiers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from pydantic import TypeAdapter

from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.config.transformers import ColumnRule, Transformer
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers import Modifiers
from pgstream_dagster.modifiers.keys import Secrets
from pgstream_dagster.modifiers.transform import transform
from pgstream_dagster.schema.change import Change
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema

KEY = b"a key of the tests, of 32 bytes."
OIDS = {"text": 25, "int4": 23, "int8": 20, "uuid": 2950, "date": 1082, "numeric": 1700}

_RULES: TypeAdapter[Transformer] = TypeAdapter(ColumnRule)


def rule(name: str, **parameters: Any) -> Transformer:
    """A rule as the pipeline file gives it."""
    return _RULES.validate_python({"name": name, **parameters})


def transformed(
    given: Transformer,
    text: str,
    value_type: str = "text",
    *,
    dynamic: Mapping[str, str | None] | None = None,
    key: bytes | None = KEY,
    environment: Mapping[str, str] | None = None,
) -> str | None:
    """What a rule makes of one value."""
    secrets = Secrets(key, environment or {})
    with closing(secrets.sessions):
        return transform(given, value_type, value_type, secrets)(text, dynamic or {})


def column(name: str, value_type: str = "text", attnum: int = 0, **more: Any) -> Column:
    return Column(
        name,
        attnum,
        OIDS.get(value_type, 99),
        more.pop("type_name", value_type),
        value_type=value_type,
        **more,
    )


def table(
    *columns: Column | str, key: tuple[str, ...] = ("id",), name: str = "customers", **more: Any
) -> TableSchema:
    """A table; columns that are given as names are of type text, and numbered in their order."""
    made = [column(c) if isinstance(c, str) else c for c in columns]
    numbered = tuple(
        Column(**{**{f: getattr(c, f) for f in Column.__slots__}, "attnum": c.attnum or place})
        for place, c in enumerate(made, start=1)
    )
    identity = more.pop("identity", ReplicaIdentity.DEFAULT)
    return TableSchema(1, 16400, "public", name, identity, numbered, key)


def change(schema: TableSchema | None, op: str = "update", **more: Any) -> Change:
    name = "" if schema is None else schema.name
    return Change(1, Lsn(100), 0, Lsn(200), op, "public", name, 16400, schema, **more)


def modifiers(config: Mapping[str, Any], **more: Any) -> Modifiers:
    """One modifier called `m`."""
    made = ModifierConfig.model_validate(config)
    return Modifiers({"m": made}, ["m"], more.pop("key", KEY), **more)


def masking_table(rules: Mapping[str, Any], schema: TableSchema, **more: Any) -> Modifiers:
    """One modifier with rules for one table."""
    options = {k: more.pop(k) for k in ("on_error", "new_columns", "drop") if k in more}
    return modifiers({"transform": {schema.full_name: rules}, **options}, **more)
