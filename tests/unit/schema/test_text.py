"""Which retypes keep every value's text."""

from __future__ import annotations

import pytest

from pgstream_dagster.schema.table import Column
from pgstream_dagster.schema.text import text_changes

OIDS = {
    "int4": 23, "int8": 20, "oid": 26, "regclass": 2205, "text": 25, "varchar": 1043,
    "bpchar": 1042, "timestamp": 1114, "timestamptz": 1184, "cidr": 650, "inet": 869,
    "numeric": 1700, "varchar[]": 1015, "text[]": 1009, "float4": 700, "float8": 701,
    "varbit": 1562, "interval": 1186,
}  # fmt: skip


def column(value_type: str, typmod: int = -1, *, oid: int | None = None) -> Column:
    return Column(
        name="a",
        attnum=1,
        type_oid=OIDS[value_type] if oid is None else oid,
        type_name="",
        typmod=typmod,
        value_type=value_type,
    )


def numeric(precision: int, scale: int) -> Column:
    return column("numeric", (precision << 16 | scale & 0x7FF) + 4)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (column("varchar", 14), column("varchar", 24)),
        (column("varchar", 14), column("varchar")),
        (column("varchar", 14), column("text")),
        (column("text"), column("varchar")),
        (column("varchar[]", 14), column("text[]")),
        (column("int4"), column("int8")),
        (column("int8"), column("int4")),
        (numeric(10, 2), numeric(12, 2)),
        (numeric(10, -2), numeric(12, -2)),
        (numeric(10, 2), column("numeric")),
        (column("timestamp", 3), column("timestamp", 6)),
        (column("varbit", 8), column("varbit", 9)),
        (column("timestamp", oid=20_000), column("timestamp")),  # a domain becomes its base
        (column("timestamptz"), column("timestamptz")),
    ],
)
def test_text_stays(before: Column, after: Column) -> None:
    assert not text_changes(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (column("timestamp"), column("timestamptz")),
        (column("oid"), column("int4")),
        (column("oid"), column("regclass")),
        (column("cidr"), column("inet")),
        (column("bpchar", 14), column("text")),
        (column("float4"), column("float8")),
        (column("varchar", 24), column("varchar", 14)),
        (column("text"), column("varchar", 14)),
        (column("text"), column("text[]")),
        (numeric(10, 2), numeric(12, 4)),
        (numeric(10, 2), numeric(12, -2)),
        (column("numeric"), numeric(12, 4)),
        (column("timestamp"), column("timestamp", 0)),
        (column("interval", 3), column("interval", 6)),
        (column("numeric"), column("numeric", oid=20_000)),  # a domain may have a scale
        (Column("a", 1, 20_000, ""), Column("a", 1, 30_000, "")),  # both forgotten
    ],
)
def test_text_may_change(before: Column, after: Column) -> None:
    assert text_changes(before, after)
