"""
What of the records that were read is new, and its rows in the log.

A change is new without a look into the log if it is past everything that its partition has brought
of its table: a sink sends the changes of a table in their order. Of the others the log is asked for
their event ids, since they may be a repetition or a dead letter that was delivered late; the
latter is refused if later changes of its row are landed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from pgstream_dagster.changelog.consumed import EPOCH, LandedRow, Partition, origin
from pgstream_dagster.consumer.late import Doubt, late_changes
from pgstream_dagster.consumer.records import Read, Unfit
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.layout import CHANGES

ANY_ORDINAL: Final = 1 << 63
"""After every ordinal: of a transaction of which only the commit LSN is known."""


class Arrived(NamedTuple):
    """A change, and where it was read."""

    partition: Partition
    offset: int
    change: Read


class Log(Protocol):
    """What is asked of the log."""

    def highest(self, partition: Partition, relation_id: int) -> int | None:
        """The highest commit LSN that a partition has brought of a relation."""
        ...

    def landed(
        self, relation_ids: Collection[int], committed_at_us: Collection[int | None]
    ) -> Iterable[str]:
        """The event ids of landed changes of these times."""
        ...

    def since(self, relation_ids: Collection[int], committed_at_us: int) -> Iterable[LandedRow]:
        """The landed changes of relations from a time of commit on, and those without a time."""
        ...


class Places:
    """How far each partition has brought each relation; of the partitions that are ours now."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._places: dict[tuple[Partition, int], tuple[int, int]] = {}

    def forget(self) -> None:
        """Others may have read the partitions: the log says how far."""
        self._places.clear()

    def passed(self, arrival: Arrived) -> tuple[int, int]:
        """The highest place before a change, which from now on counts, too."""
        flow = (arrival.partition, arrival.change.version.schema.relation_id)
        reached = self._places.get(flow)
        if reached is None:
            highest = self._log.highest(*flow)
            reached = (-1, 0) if highest is None else (highest, ANY_ORDINAL)
        self._places[flow] = max(reached, arrival.change.place)
        return reached

    def highest(self, arrived: Iterable[Arrived]) -> dict[tuple[Partition, int], int]:
        """The highest commit LSN, where these changes are from."""
        flows = {(a.partition, a.change.version.schema.relation_id) for a in arrived}
        return {flow: self._places[flow][0] for flow in flows}


def new_changes(
    arrived: Sequence[Arrived],
    places: Places,
    log: Log,
    refuse: Callable[[Arrived, Unfit], None],
) -> list[Arrived]:
    """The changes that the log lacks, in the order given; `refuse` gets what comes too late."""
    kept: dict[str, Arrived] = {}
    doubtful: dict[str, Doubt] = {}
    for arrival in arrived:
        reached, change = places.passed(arrival), arrival.change
        if change.event_id in kept:
            continue
        kept[change.event_id] = arrival
        if change.place <= reached:
            doubtful[change.event_id] = Doubt(
                change, is_behind=change.place.commit_lsn < reached[0]
            )
    repeated = _landed(doubtful.values(), log)
    left = {event_id: a for event_id, a in kept.items() if event_id not in repeated}
    unknown = {i: doubt for i, doubt in doubtful.items() if i not in repeated}
    late = late_changes([a.change for a in left.values()], unknown, log)
    for event_id, unfit in late.items():
        refuse(left[event_id], unfit)
    return [a for event_id, a in left.items() if event_id not in late]


def _landed(doubtful: Collection[Doubt], log: Log) -> frozenset[str]:
    if not doubtful:
        return frozenset()
    relations = {doubt.change.version.schema.relation_id for doubt in doubtful}
    times = {doubt.change.committed_at_us for doubt in doubtful}
    asked = {doubt.change.event_id for doubt in doubtful}
    return frozenset(asked.intersection(log.landed(relations, times)))


def rows(arrived: Sequence[Arrived]) -> pa.Table:
    """
    The rows of the log: each transaction of the source as one, counted from 0.

    A part of one that another partition brought, or an earlier commit has, is one of its own.
    """
    columns: Mapping[str, list[Any]] = {name: [] for name in CHANGES.names}
    number, ordinal, last = -1, 0, None
    for arrival in arrived:
        transaction = (arrival.partition, arrival.change.place.commit_lsn)
        number, ordinal = (number, ordinal + 1) if transaction == last else (number + 1, 0)
        last = transaction
        for name, value in _row(arrival, number, ordinal).items():
            columns[name].append(value)
    arrays = [pa.array(columns[name], CHANGES.field(name).type) for name in CHANGES.names]
    return pa.Table.from_arrays(arrays, schema=CHANGES)


def _row(arrival: Arrived, number: int, ordinal: int) -> dict[str, Any]:
    change = arrival.change
    schema = change.version.schema
    # A copied row follows the empty copy that the log began the table with.
    op = Op.INSERT.value if change.op == Op.READ else change.op
    return {
        "epoch": EPOCH,
        "commit_lsn": number,
        "ordinal": ordinal,
        "end_lsn": number + 1,
        "xid": change.xid,
        "committed_at": change.committed_at,
        "op": op,
        "namespace": schema.namespace,
        "relation": schema.name,
        "relation_id": schema.relation_id,
        "schema_id": schema.schema_id,
        "key": change.key,
        "old_key": change.old_key,
        "before": None if change.before is None else list(change.before.items()),
        "after": None if change.after is None else list(change.after.items()),
        "payload": origin(change.event_id, change.op, arrival.partition, arrival.offset),
        "landed_at": None,
    }
