"""Which changes come after later ones of their row."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

import pytest

from pgstream_dagster.changelog.consumed import LandedRow
from pgstream_dagster.consumer.late import CLOCK_US, Doubt, late_changes
from pgstream_dagster.consumer.records import Read
from pgstream_dagster.consumer.versions import Version
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Key
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import COPY_ORDINAL, DIFFERENCE_ORDINAL
from tests.support.harness.sink_changes import version

SCHEMA = version("orders", {"id": "integer"}, relation_id=7)


class Log:
    """Has these rows, and remembers from when on it was asked for them."""

    def __init__(self, *rows: LandedRow) -> None:
        self.rows, self.asked_us = rows, list[int]()

    def since(self, relation_ids: Collection[int], committed_at_us: int) -> Iterable[LandedRow]:
        self.asked_us.append(committed_at_us)
        return [row for row in self.rows if row.relation_id in relation_ids]


def change(
    lsn: int,
    ordinal: int = 0,
    *,
    op: str = "update",
    key: Key | None = ("1",),
    old: Key | None = None,
) -> Read:
    number = ordinal if ordinal >= 0 else f"7.{ordinal - COPY_ORDINAL}"
    event_id = f"1-{Lsn(lsn)}-{number}"
    described = Version(SCHEMA, Lsn(0), is_spread=False, parsers={})
    return Read(event_id, Place(Lsn(lsn), ordinal), op, described, key, old, None, None, None, None)


def landed(read: Read) -> LandedRow:
    keys = tuple(key for key in (read.key, read.old_key) if key is not None)
    return LandedRow(read.event_id, 7, read.op, keys)


TRUNCATE = change(200, op="truncate", key=None)

EARLIER = change(100, 5)


@pytest.mark.parametrize(
    "later",
    [
        change(200),
        change(100, 6),
        change(200, key=("2",), old=("1",)),
        change(200, key=None),
        TRUNCATE,
        change(200, DIFFERENCE_ORDINAL),
    ],
    ids=["row", "same transaction", "key moved", "without key", "truncate", "difference"],
)
@pytest.mark.parametrize("is_landed", [True, False])
def test_a_change_is_late_after(later: Read, is_landed: bool) -> None:
    log = Log(landed(later)) if is_landed else Log()
    arrived = [EARLIER] if is_landed else [later, EARLIER]
    late = late_changes(arrived, {EARLIER.event_id: Doubt(EARLIER, is_behind=True)}, log)
    assert list(late) == [EARLIER.event_id]


@pytest.mark.parametrize(
    "other",
    [change(200, key=("2",)), change(100, 4), change(50)],
    ids=["other row", "earlier in its transaction", "earlier transaction"],
)
def test_a_change_is_not_late_after(other: Read) -> None:
    doubtful = {EARLIER.event_id: Doubt(EARLIER, is_behind=True)}
    assert not late_changes([EARLIER], doubtful, Log(landed(other)))
    assert not late_changes([other, EARLIER], doubtful, Log())


@pytest.mark.parametrize("whole", [TRUNCATE, change(200, key=None)])
def test_what_concerns_a_whole_table_is_late_after_any_later_change_of_it(whole: Read) -> None:
    doubtful = {whole.event_id: Doubt(whole, is_behind=True)}
    assert late_changes([whole], doubtful, Log(landed(change(201, key=("9",)))))
    assert not late_changes([whole], doubtful, Log(landed(change(199, key=("9",)))))


def test_a_difference_follows_the_changes_at_its_lsn_without_a_look_into_the_log() -> None:
    difference, log = change(100, DIFFERENCE_ORDINAL), Log(landed(EARLIER))
    assert not late_changes(
        [difference], {difference.event_id: Doubt(difference, is_behind=False)}, log
    )
    assert log.asked_us == []


def test_a_change_in_the_middle_of_a_transaction_asks_for_no_time_before_it() -> None:
    at_us = 10 * CLOCK_US
    timed = EARLIER._replace(committed_at=datetime.fromtimestamp(at_us / 1e6, UTC))
    log = Log()
    late_changes([timed], {timed.event_id: Doubt(timed, is_behind=False)}, log)
    late_changes([timed], {timed.event_id: Doubt(timed, is_behind=True)}, log)
    assert log.asked_us == [at_us, at_us - CLOCK_US]
