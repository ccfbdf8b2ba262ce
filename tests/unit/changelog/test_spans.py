"""What statistics of a file say of its rows: what the rows say, or nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.changelog.spans import ROWS, Group, group_of_file
from pgstream_dagster.delta.statistics import statistics
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import COPY_ORDINAL, Op
from tests.support.reference.change import Change, Position
from tests.support.reference.history import EPOCH, RELATION_ID, change, table

BEFORE = Lsn(20)
MARKERS = (Op.COPY, Op.TRUNCATE, Op.GAP)

OPS = st.sampled_from([Op.READ, Op.INSERT, Op.COPY, Op.TRUNCATE, Op.GAP, Op.DDL, Op.UPDATE])


@st.composite
def files(draw: st.DrawFn) -> list[Change]:
    """Rows that are mostly alike."""

    def mostly(value: Any, *others: Any) -> Any:
        return draw(st.sampled_from([value] * 9 + list(others)))

    op = draw(OPS)
    return [
        Change(
            Position(mostly(EPOCH, EPOCH + 1), Lsn(mostly(10, 20, 21)), mostly(-1, 0, 1)),
            Lsn(30),
            mostly(op, draw(OPS)),
            "public",
            "t",
            mostly(RELATION_ID, 5),
            schema_id=mostly(7, 8, None),
            old_key=mostly(None, ("1",)),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]


@given(files())
def test_statistics_say_what_the_rows_say_or_nothing(rows: list[Change]) -> None:
    assert group_of_file(statistics_of(rows), EPOCH, BEFORE) == expected(rows)


def expected(rows: Sequence[Change]) -> Group | None:
    """The group that rows are, by looking at each."""
    places = [Place(row.position.commit_lsn, row.position.ordinal) for row in rows]
    alike = {(row.position.epoch, row.relation_id, row.op) for row in rows}
    are_earlier = all(
        lsn < BEFORE or (lsn == BEFORE and ordinal < 0) for lsn, ordinal in bounds(places)
    )
    if len(alike) > 1 or rows[0].position.epoch != EPOCH or not are_earlier:
        return None
    schemas, op = {row.schema_id for row in rows}, rows[0].op
    schema_id = schemas.pop() if len(schemas) == 1 else None
    has_moves = any(row.old_key for row in rows)
    is_marker = op in MARKERS and len(set(places)) == 1
    if not is_marker and (op not in ROWS or schema_id is None or has_moves):
        return None
    return Group(
        rows[0].relation_id or 0,
        schema_id,
        marker=op if is_marker else None,
        first=bounds(places)[0],
        last=bounds(places)[1],
        move=None,
        reads=len(rows) if op is Op.READ else 0,
        rows=len(rows),
    )


def bounds(places: Sequence[Place]) -> list[Place]:
    """The least and the greatest of either part."""
    return [Place(*(pick(part) for part in zip(*places, strict=True))) for pick in (min, max)]


def statistics_of(rows: Sequence[Change]) -> dict[str, Any]:
    """As a reader of the log gets them."""
    return json.loads(json.dumps(statistics(table(rows))))


COPIED = statistics_of([change(Op.READ, 10, COPY_ORDINAL + 1, schema_id=7)])


def test_rows_of_a_copy_are_a_group() -> None:
    at = Place(Lsn(10), COPY_ORDINAL + 1)
    group = Group(RELATION_ID, 7, marker=None, first=at, last=at, move=None, reads=1, rows=1)
    assert group_of_file(COPIED, EPOCH, BEFORE) == group


@pytest.mark.parametrize(
    "missing",
    [
        {"minValues": None},
        {"maxValues": {}},
        {"nullCount": None},
        {"numRecords": None},
        {"minValues": COPIED["minValues"] | {"ordinal": -4.6e18}},
        {"maxValues": {n: v for n, v in COPIED["maxValues"].items() if n != "commit_lsn"}},
        {"nullCount": COPIED["nullCount"] | {"old_key": None}},
        {"nullCount": COPIED["nullCount"] | {"old_key": 0}},
        {"nullCount": COPIED["nullCount"] | {"op": 1}},
    ],
    ids=str,
)
def test_statistics_that_lack_something_say_nothing(missing: dict[str, Any]) -> None:
    assert group_of_file(COPIED | missing, EPOCH, BEFORE) is None


def test_no_statistics_say_nothing() -> None:
    assert group_of_file({}, EPOCH, BEFORE) is None
