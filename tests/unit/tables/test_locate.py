"""Rows are found by key as a MERGE finds them: by value, NULL too, and by rescued text."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.tables.locate import Finder, Key, can_locate

TYPES = {
    "a": pa.int64(),
    "b": pa.string(),
    "c": pa.date32(),
    "d": pa.decimal128(6, 2),
    "_rescued": pa.map_(pa.string(), pa.string()),
}
SCHEMA = pa.schema(list(TYPES.items()))
FIELDS = {name: pa.field(f"col-{name}", type_) for name, type_ in TYPES.items()}
RESCUABLE = ("c", "d")

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": st.none() | st.integers(-2, 2) | st.sampled_from([-(2**63), 2**63 - 1]),
    "b": st.none() | st.sampled_from(["", "x", "é", "\U0001f600", "X"]),
    "c": st.none() | st.sampled_from([date(1, 1, 1), date(9999, 12, 31)]),
    "d": st.none() | st.sampled_from([Decimal("0.00"), Decimal("1.50"), Decimal("-9999.99")]),
    "_rescued": st.none()
    | st.dictionaries(st.sampled_from(["c", "d", "e"]), st.sampled_from(["infinity", "NaN"])).map(
        lambda texts: list(texts.items())
    ),
}
ROWS = st.lists(st.fixed_dictionaries(VALUES), max_size=12)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def identity(row: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    texts = dict(row["_rescued"] or [])
    return (*(row[n] for n in names), *(texts.get(n) for n in names if n in RESCUABLE))


@given(ROWS, ROWS.filter(bool), st.permutations(["a", "b", "c", "d"]), st.integers(1, 4))
def test_rows_have_a_key_if_all_its_parts_are_equal(
    rows: list[dict[str, Any]], keys: list[dict[str, Any]], order: list[str], width: int
) -> None:
    names = tuple(order[:width])
    finder = Finder(table(keys), Key(names, [n for n in names if n in RESCUABLE]))
    sought = Counter(identity(row, names) for row in keys)
    result = finder.among(table(rows)).to_pylist()
    assert result == [identity(row, names) in sought for row in rows]
    assert finder.is_unique == (max(sought.values()) == 1)


@pytest.mark.parametrize("name", ["a", "b"])
def test_rows_of_a_file_are_numbered_over_all_its_parts(tmp_path: Path, name: str) -> None:
    values = [{"a": n, "b": f"{n:03d}", "c": None, "d": None, "_rescued": None} for n in range(100)]
    named = [FIELDS[n].name for n in SCHEMA.names]
    pq.write_table(table(values).rename_columns(named), tmp_path / "f.parquet", row_group_size=10)
    keys = table([values[n] for n in (99, 7, 40, 41)])
    result = Finder(keys, Key([name], [])).rows_of(f"file:{tmp_path}/f.parquet", FIELDS)
    assert result.tolist() == [7, 40, 41, 99]


def test_a_column_that_a_file_lacks_is_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"col-a": pa.array([1, 2], pa.int64())}), tmp_path / "f.parquet")
    row = {"a": 2, "b": None, "c": None, "d": None, "_rescued": None}
    finder = Finder(table([row]), Key(["a", "b"], []))
    assert finder.rows_of(f"file:{tmp_path}/f.parquet", FIELDS).tolist() == [1]


def test_times_in_a_file_that_another_spark_has_rewritten_are_what_they_were(
    tmp_path: Path,
) -> None:
    """With its default settings."""
    type_ = pa.timestamp("us", "UTC")
    times = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]
    rows = pa.table({"at": pa.array(times, type_)})
    file, key = tmp_path / "f.parquet", Key(["at"], [])
    written = rows.rename_columns(["col-at"]).cast(pa.schema([("col-at", type_)]))
    pq.write_table(written, file, use_deprecated_int96_timestamps=True)
    fields = {"at": pa.field("col-at", type_)}
    assert Finder(rows, key).rows_of(f"file:{file}", fields).tolist() == [0, 1]


def test_keys_of_floats_and_of_nested_values_are_left_to_spark() -> None:
    fields = {
        "whole": pa.field("1", pa.int64()),
        "real": pa.field("2", pa.float64()),
        "list": pa.field("3", pa.list_(pa.int64())),
    }
    assert can_locate(fields, ["whole"])
    assert not can_locate(fields, ["whole", "real"])
    assert not can_locate(fields, ["list"])
