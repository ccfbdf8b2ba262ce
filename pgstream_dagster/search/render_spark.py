"""
Documents from rows in Spark, as columns: what a re-index sends. No Python runs per row.

Gives the same bytes as `render`: both run what `renderings` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgstream_dagster.search.fields import RESCUED, Field
from pgstream_dagster.search.render import string
from pgstream_dagster.search.renderings import RENDERINGS


def body(fields: Sequence[Field], row: Column) -> Column:
    """
    The document of each row, as JSON in one line.

    Shape:
        row: map<string,string> of column name to Postgres text, every column in it, as a fold has
            it.
    """
    parts = [_member(field, row[field.column]) for field in fields]
    kept = [part for field in fields if (part := _kept(field, row[field.column])) is not None]
    if kept:
        rescued = F.array_join(F.array(*kept), ",")  # leaves nulls out, here and below
        whole = F.concat(F.lit(f"{string(RESCUED)}:{{"), rescued, F.lit("}"))
        parts.append(F.when(rescued != "", whole))
    joined = F.array_join(F.array(*parts), ",") if parts else F.lit("")
    return F.when(row.isNotNull(), F.concat(F.lit("{"), joined, F.lit("}")))


def fragment(field: Field, text: Column) -> Column:
    """The value as JSON; null for a text that cannot be indexed, and for NULL."""
    accepted = _accepted(field, text)
    value = _rewritten(field, text)
    return value if accepted is None else F.when(accepted, value)


def quoted(text: Column) -> Column:
    """A text as JSON string."""
    written = F.to_json(F.array(text))
    return F.substr(written, F.lit(2), F.length(written) - 2)


def _member(field: Field, text: Column) -> Column:
    label = f"{string(field.name)}:"
    null = F.when(text.isNull(), F.lit(f"{label}null"))
    accepted, value = _accepted(field, text), F.concat(F.lit(label), _rewritten(field, text))
    return null.otherwise(value) if accepted is None else null.when(accepted, value)


def _kept(field: Field, text: Column) -> Column | None:
    """The value as text where its field cannot hold it; `None`: it can hold any."""
    accepted = _accepted(field, text)
    if accepted is None:
        return None
    return F.when(~accepted, F.concat(F.lit(f"{string(field.name)}:"), quoted(text)))


def _accepted(field: Field, text: Column) -> Column | None:
    accepts = RENDERINGS[field.kind, field.is_array].accepts
    return F.rlike(text, F.lit(f"^(?:{accepts})(?![\\s\\S])")) if accepts else None


def _rewritten(field: Field, text: Column) -> Column:
    rendering = RENDERINGS[field.kind, field.is_array]
    if rendering.escapes:
        text = quoted(text)
    for pattern, replacement in rendering.rewrites:
        text = F.regexp_replace(text, pattern, replacement)
    return text
