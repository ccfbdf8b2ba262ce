"""Rows of the past as they are printed."""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import SparkSession

from pgstream_dagster.tables.history.printed import printed


def test_values_are_printed_as_postgres_prints_them(spark: SparkSession) -> None:
    schema = "id INT, raw BINARY, raws ARRAY<ARRAY<BINARY>>, n DECIMAL(38,2), note STRING"
    row = (1, b"\x00\xff", [[b"\xab", None], []], Decimal("1.50"), "")
    rows = spark.createDataFrame([row, (2, None, None, None, None)], schema)
    assert sorted(printed(rows, None).as_csv().splitlines()) == [
        '"id","raw","raws","n","note"',
        r'1,"\x00ff","[[""\\xab"", null], []]","1.50",""',
        "2,,,,",
    ]
