"""What commands print."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from pgstream_dagster.cli.progress import Rate
from pgstream_dagster.cli.render import as_json, size, table
from pgstream_dagster.lsn import Lsn


class Colour(StrEnum):
    RED = "red"


@dataclass
class Inner:
    lsn: Lsn | None
    names: frozenset[str]


@dataclass
class Outer:
    inner: Inner
    by_oid: dict[int, Colour]
    is_good: bool


def test_json_shows_positions_as_postgres_prints_them():
    said = Outer(
        Inner(Lsn.parse("16/B374D848"), frozenset({"b", "a"})), {5: Colour.RED}, is_good=True
    )
    assert json.loads(as_json(said)) == {
        "inner": {"lsn": "16/B374D848", "names": ["a", "b"]},
        "by_oid": {"5": "red"},
        "is_good": True,
    }


def test_table_aligns_numbers_to_the_right():
    said = table(["table", "rows"], [["public.orders", 1234567], ["a", 5]])
    assert said.splitlines() == [
        "table               rows",
        "public.orders  1,234,567",
        "a                      5",
    ]


def test_sizes_are_read_by_people():
    assert [size(512), size(1536), size(-(3 << 20)), size(1 << 41)] == [
        "512 bytes",
        "1.5 KB",
        "-3.0 MB",
        "2.0 TB",
    ]


def test_rate_forgets_what_is_long_ago():
    rate = Rate()
    assert rate.of(0, 0) == 0
    assert rate.of(1, 100) == 100
    for second in range(2, 40):
        last = rate.of(second, 100)
    assert last == 0
