"""Which types a column can take in place; `tests/lake/test_table_types.py` asks Delta the same."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from pgstream_dagster.tables.widening import widened

RANGE = T.StructType([T.StructField("lower", T.IntegerType()), T.StructField("b", T.DateType())])
WIDER = T.StructType(
    [T.StructField("lower", T.LongType()), T.StructField("b", T.TimestampNTZType())]
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (T.ShortType(), T.IntegerType()),
        (T.ShortType(), T.LongType()),
        (T.IntegerType(), T.LongType()),
        (T.IntegerType(), T.DoubleType()),
        (T.FloatType(), T.DoubleType()),
        (T.IntegerType(), T.DecimalType(12, 2)),
        (T.LongType(), T.DecimalType(22, 2)),
        (T.DecimalType(10, 2), T.DecimalType(12, 2)),
        (T.DecimalType(10, 2), T.DecimalType(12, 4)),
        (T.DateType(), T.TimestampNTZType()),
        (T.StringType(), T.StringType()),
        (T.ArrayType(T.ShortType(), containsNull=False), T.ArrayType(T.LongType())),
        (RANGE, WIDER),
    ],
)
def test_a_wider_type_keeps_every_value(before: T.DataType, after: T.DataType) -> None:
    assert widened(before, after)
    assert before == after or not widened(after, before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (T.LongType(), T.DoubleType()),
        (T.IntegerType(), T.FloatType()),
        (T.IntegerType(), T.DecimalType(11, 2)),
        (T.LongType(), T.DecimalType(19, 0)),
        (T.DecimalType(10, 2), T.DecimalType(11, 4)),
        (T.DecimalType(10, 2), T.DoubleType()),
        (T.DateType(), T.TimestampType()),
        (T.TimestampNTZType(), T.TimestampType()),
        (T.IntegerType(), T.StringType()),
        (T.IntegerType(), T.ArrayType(T.IntegerType())),
        (RANGE, T.StructType(WIDER.fields[::-1])),
        (RANGE, T.StructType(WIDER.fields[:1])),
        (T.BooleanType(), T.IntegerType()),
    ],
)
def test_any_other_change_is_not_in_place(before: T.DataType, after: T.DataType) -> None:
    assert not widened(before, after)
