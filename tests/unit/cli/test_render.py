"""What commands print: tables, JSON, rates, remaining time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

import pytest

from pgstream_dagster.cli import progress
from pgstream_dagster.cli.progress import CopyLine, Rate
from pgstream_dagster.cli.render import as_json, copies, size, table
from pgstream_dagster.copy.copying import Copied, CopyProgress
from pgstream_dagster.copy.scan import ScanProgress
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema


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
    value = Outer(
        Inner(Lsn.parse("16/B374D848"), frozenset({"b", "a"})), {5: Colour.RED}, is_good=True
    )
    assert json.loads(as_json(value)) == {
        "inner": {"lsn": "16/B374D848", "names": ["a", "b"]},
        "by_oid": {"5": "red"},
        "is_good": True,
    }


def test_table_aligns_numbers_to_the_right():
    printed = table(["table", "rows"], [["public.orders", 1234567], ["a", 5]])
    assert printed.splitlines() == [
        "table               rows",
        "public.orders  1,234,567",
        "a                      5",
    ]


def test_sizes_have_units():
    assert [size(512), size(1536), size(-(3 << 20)), size(1 << 41)] == [
        "512 bytes",
        "1.5 KB",
        "-3.0 MB",
        "2.0 TB",
    ]


def test_rate_forgets_what_is_long_ago():
    rate = Rate()
    assert rate.update(0, 0) == 0
    assert rate.update(1, 100) == 100
    for second in range(2, 40):
        last = rate.update(second, 100)
    assert last == 0


def test_remaining_time_follows_the_average_rate_and_not_the_pause_between_two_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    line = CopyLine()

    def shown(seconds: float, rows: int) -> str:
        nonlocal now
        now = seconds
        reading = (ScanProgress("public.orders", rows, 4000, 0, 1),)
        line.put(CopyProgress(0, 2, rows, 4000, reading))
        return line() or ""

    assert "left" not in shown(0, 0)
    assert "left" not in shown(5, 500)
    assert shown(14, 2000).endswith("about 14 s left")
    assert shown(20, 2010).endswith("about 20 s left")
    assert "left" not in shown(22, 4100)


def test_copies_end_with_their_total_and_the_next_step() -> None:
    schema = TableSchema(1, 16_384, "public", "orders", ReplicaIdentity.DEFAULT, (), ())
    done = Copied("public.orders", schema, 1200, Lsn(1), 1, 2.0)
    printed = copies([done, done], 65.0, "pgstream stream").splitlines()
    assert printed[-2:] == ["copied 2 tables, 2,400 rows in 1 min 5 s", "next: pgstream stream"]
    assert copies([done], 1.0, None).endswith("copied 1 table, 1,200 rows in 1 s")
    assert copies([], 1.0, "pgstream stream") == "nothing to copy"
