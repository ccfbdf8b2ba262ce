"""Delta's statistics of a file: bounds that no value is past, and null counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.delta.statistics import TEXT_LENGTH, Statistics, may_have, statistics

TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=TEXT_LENGTH + 3), min_size=1
)


@given(TEXTS, st.lists(st.sampled_from("a\U0010ffff"), max_size=TEXT_LENGTH + 2).map("".join))
def test_no_text_is_past_its_bounds(texts: list[str], last: str) -> None:
    texts.append(last)
    stats = statistics(pa.table({"t": texts}))
    if "t" in stats["minValues"]:
        least, greatest = (stats[name]["t"].encode() for name in ("minValues", "maxValues"))
        assert all(least <= text.encode() <= greatest for text in texts)


def test_a_long_text_has_bounds_of_its_first_characters() -> None:
    stats = statistics(pa.table({"t": ["a" * 100, "b" * 100]}))
    assert stats["minValues"]["t"] == "a" * TEXT_LENGTH
    assert stats["maxValues"]["t"] == "b" * TEXT_LENGTH + "\U0010ffff"


@pytest.mark.parametrize(
    ("values", "type_", "bounds"),
    [
        ([2, None, 1], pa.int64(), (1, 2)),
        ([None, None], pa.int64(), None),
        ([1.5], pa.float64(), None),
        ([[1]], pa.list_(pa.int64()), None),
        (
            [datetime(2026, 1, 1, 0, 0, 0, 1_500, UTC)],
            pa.timestamp("us", "UTC"),
            ("2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.002Z"),
        ),
        ([datetime(9999, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"), None),
    ],
)
def test_bounds_are_given_where_json_compares_as_the_values_do(
    values: list[Any], type_: pa.DataType, bounds: tuple[Any, Any] | None
) -> None:
    stats = statistics(pa.table({"c": pa.array(values, type_)}))
    given_bounds = [stats[name].get("c") for name in ("minValues", "maxValues")]
    assert given_bounds == list(bounds or (None, None))
    assert stats["nullCount"] == {"c": values.count(None)}


@pytest.mark.parametrize("microseconds", [-62_135_596_800_000_001, 253_402_300_800_000_000])
def test_a_time_that_python_does_not_have_leaves_its_file_without_bounds(microseconds: int) -> None:
    gathered, type_ = Statistics(), pa.timestamp("us", "UTC")
    for value in 0, microseconds, 1:
        gathered.add(pa.table({"at": pa.array([value], pa.int64()).cast(type_), "n": [value]}))
    stats = gathered.to_dict()
    assert stats["minValues"].keys() == stats["maxValues"].keys() == {"n"}
    assert stats["nullCount"] == {"at": 0, "n": 0}


def test_statistics_are_of_all_tables_of_a_file() -> None:
    gathered = Statistics(["a"])
    for a, b in ([5, None], ["x", "y"]), ([3], [None]), ([None], ["z"]):
        gathered.add(pa.table({"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.string())}))
    assert gathered.to_dict() == {
        "numRecords": 4,
        "minValues": {"a": 3},
        "maxValues": {"a": 5},
        "nullCount": {"a": 2, "b": 1},
    }


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        ({}, True),
        ({"a": (0, 2)}, False),
        ({"a": (0, 3)}, True),
        ({"a": (5, 9)}, True),
        ({"a": (6, 9)}, False),
        ({"a": (4, 4), "b": (1, 1)}, True),
        ({"a": (9, 9), "b": (1, 1)}, False),
    ],
)
def test_a_file_is_passed_over_if_no_row_can_be_within_all_bounds(
    within: dict[str, tuple[int, int]], expected: bool
) -> None:
    rows = pa.table({"a": [3, 5], "b": pa.array([None, None], pa.int64())})
    assert may_have(statistics(rows), within) is expected
    assert may_have({}, within)
    assert may_have({"minValues": {"a": None, "b": None}, "maxValues": None}, within)
