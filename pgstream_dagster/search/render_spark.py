"""
Documents from rows in Spark, as columns: what a re-index sends. No Python runs per row.

Gives the same bytes as `render`: both run what `renderings` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.search.fields import RESCUED, Field
from pgstream_dagster.search.render import string
from pgstream_dagster.search.renderings import RENDERINGS

_ESCAPED: Final = r'[\x00-\x1f"\\]'


def with_body(rows: DataFrame, fields: Sequence[Field]) -> DataFrame:
    """
    The rows with the document of each as `body`, JSON in one line, in the place of `row`.

    In three projections, as Spark would work out a text or a member again wherever it is named.

    Shape:
        rows: with `row`, a map<string,string> of column name to Postgres text, every column in it,
            as a fold has it.
    """
    others = [F.col(name) for name in rows.columns if name != "row"]
    is_there = F.col("row").isNotNull().alias("is there")
    texts = [_text(field).alias(f"text {n}") for n, field in enumerate(fields)]
    members = [_member(field, F.col(f"text {n}")) for n, field in enumerate(fields)]
    named = [member.alias(f"member {n}") for n, member in enumerate(members)]
    read = rows.select(*others, is_there, *texts)
    return read.select("*", *named).select(*others, _body(fields).alias("body"))


def fragment(field: Field, text: Column) -> Column:
    """The value as JSON; null for a text that cannot be indexed, and for NULL."""
    accepted = _accepted(field, text)
    value = _rewritten(field, text)
    return value if accepted is None else F.when(accepted, value)


def quoted(text: Column) -> Column:
    """A text as JSON string."""
    written = F.to_json(F.array(text))
    escaped = F.substr(written, F.lit(2), F.length(written) - 2)
    as_it_is = F.concat(F.lit('"'), text, F.lit('"'))
    return F.when(F.rlike(text, F.lit(_ESCAPED)), escaped).otherwise(as_it_is)


def _text(field: Field) -> Column:
    return F.try_element_at(F.col("row"), F.lit(field.column))


def _body(fields: Sequence[Field]) -> Column:
    """Of the columns `text` and `member`; a text without a member is kept as it is."""
    parts = [F.col(f"member {n}") for n in range(len(fields))]
    kept = [
        F.when(
            F.col(f"text {n}").isNotNull() & parts[n].isNull(),
            F.concat(F.lit(f"{string(field.name)}:"), quoted(F.col(f"text {n}"))),
        )
        for n, field in enumerate(fields)
        if RENDERINGS[field.kind, field.is_array].accepts
    ]
    if kept:
        rescued = F.array_join(F.array(*kept), ",")  # leaves nulls out, here and below
        whole = F.concat(F.lit(f"{string(RESCUED)}:{{"), rescued, F.lit("}"))
        parts.append(F.when(rescued != "", whole))
    joined = F.array_join(F.array(*parts), ",") if parts else F.lit("")
    return F.when(F.col("is there"), F.concat(F.lit("{"), joined, F.lit("}")))


def _member(field: Field, text: Column) -> Column:
    label = f"{string(field.name)}:"
    null = F.when(text.isNull(), F.lit(f"{label}null"))
    accepted, value = _accepted(field, text), F.concat(F.lit(label), _rewritten(field, text))
    return null.otherwise(value) if accepted is None else null.when(accepted, value)


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
