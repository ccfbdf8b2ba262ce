"""
The types of typed tables: a column's Delta type, and its values from their texts.

Spark expressions only; nothing runs here. The promise: a value that is not null, given to Postgres
as the column's type, is the value that its text is there; so a text that the type's output function
wrote comes back as it was. (Under the option `decimal(p,s)` a numeric may come back with zeros
added behind the point.) Every other text is kept as it is, in the map `RESCUED`. Text of json is
not checked. Read `forms`, `casts`, then this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pyspark import SparkContext
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.schema.table import Column
from pgstream_dagster.tables import casts
from pgstream_dagster.tables.forms import DEFAULTS, Form, form_of
from pgstream_dagster.values.types import LakeType

RESCUED: Final = "_rescued"
"""The column with the texts of a row that their own columns cannot hold, by column name."""

RESCUED_TYPE: Final = T.MapType(T.StringType(), T.StringType())

_SIMPLE: Final = {
    LakeType.STRING: T.StringType(),
    LakeType.BOOLEAN: T.BooleanType(),
    LakeType.SMALLINT: T.ShortType(),
    LakeType.INT: T.IntegerType(),
    LakeType.BIGINT: T.LongType(),
    LakeType.UNSIGNED: T.LongType(),
    LakeType.FLOAT: T.FloatType(),
    LakeType.DOUBLE: T.DoubleType(),
    LakeType.DATE: T.DateType(),
    LakeType.TIMESTAMP_NTZ: T.TimestampNTZType(),
    LakeType.TIMESTAMP: T.TimestampType(),
    LakeType.BINARY: T.BinaryType(),
    LakeType.VARIANT: T.VariantType(),
    LakeType.MAP: T.MapType(T.StringType(), T.StringType()),
    LakeType.VECTOR: T.ArrayType(T.FloatType()),
}


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of a typed table: its name there, and the source's column with its options."""

    name: str
    source: Column
    options: ColumnTypes = DEFAULTS


def delta_type(column: Column, options: ColumnTypes = DEFAULTS) -> T.DataType:
    """The type of a column in a typed table."""
    return data_type(form_of(column, options))


def typed(
    text: SparkColumn, column: Column, options: ColumnTypes = DEFAULTS
) -> tuple[SparkColumn, SparkColumn]:
    """
    The value of a text, and whether it cannot be held exactly and is null for that reason.

    NULL is null and not rescued. Neither expression ever raises an error. The second contains the
    first: where both are needed, select the value first, as `with_types` does.
    """
    value = casts.value(text, form_of(column, options))
    return value, text.isNotNull() & value.isNull()


def rescued(texts: Iterable[tuple[str, SparkColumn, SparkColumn]]) -> SparkColumn:
    """
    The map of the texts that their columns cannot hold; null if there are none.

    Shape:
        texts: column name, text, and whether it is rescued.
    """
    kept = list(texts)
    if not kept:
        return F.lit(None).cast(RESCUED_TYPE)
    entries = [
        F.when(is_rescued, F.array(F.struct(F.lit(name).alias("key"), text.alias("value"))))
        for name, text, is_rescued in kept
    ]
    no_entry = F.array().cast("array<struct<key:string,value:string>>")
    # Most rows have none, and make no array; `concat` is compiled, functions with lambdas are not.
    is_any = F.coalesce(*(F.when(is_rescued, F.lit(True)) for _, _, is_rescued in kept))  # noqa: FBT003
    whole = F.concat(*(F.coalesce(entry, no_entry) for entry in entries))
    return F.when(is_any, F.map_from_entries(whole))


def with_types(rows: DataFrame, columns: Sequence[TypedColumn]) -> DataFrame:
    """
    The typed columns, and `RESCUED`, in place of `row`; other columns of `rows` come first.

    In three projections, as Spark would cast a text again wherever its value is used.

    Shape:
        rows: with `row`, a map<string,string> of source column name to Postgres text, as in a fold.
    """
    others = [F.col(_quoted(name)) for name in rows.columns if name != "row"]
    texts, values, named = _projections(rows.sparkSession.sparkContext, tuple(columns))
    return rows.select(*others, *texts).select("*", *values).select(*others, *named)


@lru_cache(maxsize=256)
def _projections(
    _: SparkContext, columns: Sequence[TypedColumn]
) -> tuple[list[SparkColumn], list[SparkColumn], list[SparkColumn]]:
    """
    Texts, their values, and both under the names of the table.

    Columns are made in the JVM, call by call, and are the same for every pass while that runs.
    """
    cells = [(f"text {n}", f"value {n}", column) for n, column in enumerate(columns)]
    texts = [
        F.try_element_at(F.col("row"), F.lit(column.source.name)).alias(text)
        for text, _, column in cells
    ]
    values = [
        casts.value(F.col(text), form_of(column.source, column.options)).alias(value)
        for text, value, column in cells
    ]
    named = [F.col(value).alias(column.name) for _, value, column in cells]
    kept = rescued(
        (column.name, F.col(text), F.col(text).isNotNull() & F.col(value).isNull())
        for text, value, column in cells
        if form_of(column.source, column.options).lake is not LakeType.STRING
    )
    return texts, values, [*named, kept.alias(RESCUED)]


def data_type(form: Form) -> T.DataType:
    """The data type of a form."""
    match form.lake:
        case LakeType.DECIMAL:
            return T.DecimalType(form.digits + form.scale, form.scale)
        case LakeType.RANGE:
            bound = data_type(form.element)
            types = [bound, bound, *[T.BooleanType()] * 3]
            fields = zip(casts.RANGE_FIELDS, types, strict=True)
            return T.StructType([T.StructField(name, type_) for name, type_ in fields])
        case LakeType.ARRAY | LakeType.MULTIRANGE:
            return T.ArrayType(data_type(form.element))
        case _:
            return _SIMPLE[form.lake]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
