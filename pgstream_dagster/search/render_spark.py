"""
Documents from rows as Spark columns, for a re-index. No Python runs per row.

Gives the same bytes as `render`: both run the expressions of `renderings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.search.fields import RESCUED, Field
from pgstream_dagster.values.render import string
from pgstream_dagster.values.renderings import RENDERINGS

_ESCAPED: Final = r'[\x00-\x1f"\\]'


def with_body(rows: DataFrame, fields: Sequence[Field]) -> DataFrame:
    """
    Replace `row` by `body`, the document of the row, as JSON in one line.

    In three projections, as Spark would evaluate a text or a member again wherever it is used.

    Shape:
        rows: with `row`, a map<string,string> of every column name to Postgres text, as in a fold.
    """
    others = [name for name in rows.columns if name != "row"]
    is_there = F.col("row").isNotNull().alias("is there")
    texts = [_text(field).alias(f"text {n}") for n, field in enumerate(fields)]
    members = [member(f, F.col(f"text {n}")).alias(f"member {n}") for n, f in enumerate(fields)]
    read = rows.select(*others, is_there, *texts)
    return read.select("*", *members).select(*others, _body(fields).alias("body"))


def quoted(text: Column) -> Column:
    """A text as a JSON string."""
    written = F.to_json(F.array(text))
    escaped = F.substr(written, F.lit(2), F.length(written) - 2)
    as_it_is = F.concat(F.lit('"'), text, F.lit('"'))
    return F.when(F.rlike(text, F.lit(_ESCAPED)), escaped).otherwise(as_it_is)


def _text(field: Field) -> Column:
    return F.try_element_at(F.col("row"), F.lit(field.column))


def _body(fields: Sequence[Field]) -> Column:
    """The document, from the columns `text` and `member`; keeps a text without a member as text."""
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
        rescued = F.array_join(F.array(*kept), ",")  # omits nulls, here and below
        whole = F.concat(F.lit(f"{string(RESCUED)}:{{"), rescued, F.lit("}"))
        parts.append(F.when(rescued != "", whole))
    joined = F.array_join(F.array(*parts), ",") if parts else F.lit("")
    return F.when(F.col("is there"), F.concat(F.lit("{"), joined, F.lit("}")))


def member(field: Field, text: Column) -> Column:
    """A member of the document: the field's name and value; null if it cannot be indexed."""
    label = f"{string(field.name)}:"
    null = F.when(text.isNull(), F.lit(f"{label}null"))
    rendering = RENDERINGS[field.kind, field.is_array]
    value = quoted(text) if rendering.escapes else text
    for pattern, replacement in rendering.rewrites:
        value = F.regexp_replace(value, pattern, replacement)
    value = F.concat(F.lit(label), value)
    if not rendering.accepts:
        return null.otherwise(value)
    return null.when(F.rlike(text, F.lit(f"^(?:{rendering.accepts})(?![\\s\\S])")), value)
