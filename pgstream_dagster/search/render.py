"""
Documents from images, row by row, for the live indexer. Pure.

Gives the same bytes as `render_spark`: both run the expressions of `values.renderings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from pgstream_dagster.search.fields import RESCUED, Field
from pgstream_dagster.values.raw_json import members
from pgstream_dagster.values.render import renderer, string


def document(fields: Sequence[Field], image: Mapping[str, str | None]) -> str:
    """The document of a full row, as JSON in one line."""
    return _joined(fields, *fragments(fields, image))


def fragments(
    fields: Sequence[Field], image: Mapping[str, str | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """
    The fields of the columns that the image carries, as JSON; NULL is `null`.

    Shape:
        result: the values by field name, and those that their fields cannot hold, as strings.
    """
    values: dict[str, str] = {}
    rescued: dict[str, str] = {}
    for field in fields:
        if field.column not in image:
            continue
        text = image[field.column]
        value = "null" if text is None else renderer(field.kind, field.is_array)(text)
        if value is not None:
            values[field.name] = value
        elif text is not None:
            rescued[field.name] = string(text)
    return values, rescued


def merged(fields: Sequence[Field], stored: str, image: Mapping[str, str | None]) -> str:
    """
    A stored document with the columns that the image carries laid over it.

    Equal to the document of the full row, byte by byte, if the stored one was: values that are not
    replaced are copied as they were written. Fields that no longer exist are left out.

    Shape:
        stored: the JSON of `_source` as the engine sent it, not parsed (see `raw_json.members`).
    """
    (values, rescued), had = fragments(fields, image), members(stored)
    carried = values.keys() | rescued.keys()
    kept = {name: raw for name, raw in had.items() if name not in carried and name != RESCUED}
    kept_texts = members(had.get(RESCUED, "{}"))
    texts = {name: raw for name, raw in kept_texts.items() if name not in carried}
    return _joined(fields, kept | values, texts | rescued)


def _joined(fields: Sequence[Field], values: Mapping[str, str], rescued: Mapping[str, str]) -> str:
    parts = [f"{_label(f.name)}{values[f.name]}" for f in fields if f.name in values]
    if rescued:
        kept = [f"{_label(f.name)}{rescued[f.name]}" for f in fields if f.name in rescued]
        parts.append(f"{_label(RESCUED)}{{{','.join(kept)}}}")
    return f"{{{','.join(parts)}}}"


@cache
def _label(name: str) -> str:
    return f"{string(name)}:"
