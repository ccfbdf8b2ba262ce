"""
The log of a pipeline whose changes come from partitions of Kafka topics, for any number of writers.

One commit has the rows and, as transaction ids, the offset that each of their partitions was read
up to. It is made only if each partition is where the writer left it: so a record lands once,
whatever consumer groups, restarts and rebalances do. The order of the log is its own: a commit is
placed after the watermark as it is then, and when another writer was faster it is placed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog import markers
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import (
    Committed,
    committed,
    copy_app,
    landing_app,
    written_files,
)
from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.delta_table import DeltaTable, TransactionIds
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Key
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import TableSchema

EPOCH: Final = 1
"""Of such a log: it has one source for ever."""

FIRST_WATERMARK: Final = Lsn(1)

ORIGIN: Final = '{"event_id":"'
"""How the payload of a landed record begins; its event id follows."""

_EVENT_ID: Final = r'^\{"event_id":"(?P<id>[^"]*)"'


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int


class LandedRow(NamedTuple):
    """A landed change: its event id at the source, and the keys that it concerns."""

    event_id: str
    relation_id: int
    op: str
    keys: tuple[Key, ...]


class PartitionTaken(Exception):
    """Another writer has landed records of a partition since it was last looked at."""


class Topic(NamedTuple):
    """A topic as it was when reading it began; `id` is a number made of Kafka's own."""

    partitions: int
    id: int


class _Moved(Exception):
    """Another writer has moved the watermark."""


@dataclass(frozen=True, slots=True)
class Span:
    """
    What was read of partitions: from where the log is, up to where it is afterwards.

    `highest` has the highest commit LSN of the source that each partition has brought of each
    relation.
    """

    begins: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    highest: Mapping[tuple[Partition, int], int] = field(
        default_factory=dict[tuple[Partition, int], int]
    )


class ConsumedLog:
    """The log and the offsets in it; one thread uses it."""

    def __init__(self, lake: Lake, pipeline: str, gateway: JavaGateway) -> None:
        self._table = DeltaTable(lake.change_log, gateway)
        self._pipeline = pipeline
        self._landing = landing_app(pipeline, EPOCH)

    def close(self) -> None:
        """Wait for checksums and checkpoints."""
        self._table.close()

    def refresh(self) -> None:
        """See what other writers have landed."""
        self._table.refresh()

    @property
    def watermark(self) -> Lsn:
        """The end of the log as of the last refresh or commit."""
        return Lsn(self._table.transaction_id(self._landing) or FIRST_WATERMARK)

    # --- offsets --------------------------------------------------------------------------------

    def offset(self, partition: Partition) -> int | None:
        """The first offset of a partition that is not in the log."""
        return self._table.transaction_id(self._offset_app(partition))

    def begun(self, topic: str) -> Topic | None:
        """A topic as it was when a process began to read it; `None` before that."""
        partitions = self._table.transaction_id(self._topic_app(topic))
        number = self._table.transaction_id(self._topic_id_app(topic))
        return None if partitions is None or number is None else Topic(partitions, number)

    @property
    def has_begun(self) -> bool:
        """Whether any process has begun to read any topic."""
        return self._table.transaction_id(self._topics_app) is not None

    def begin(self, topics: Mapping[str, Topic], offsets: Mapping[Partition, int]) -> None:
        """
        Record where reading topics begins, for all their partitions, in one commit.

        No-op if another process has begun one of them meanwhile.
        """
        begun = {self._topic_app(name): topic.partitions for name, topic in topics.items()}

        def condition(ids: TransactionIds) -> None:
            if any(ids(app) is not None for app in begun):
                raise _Moved

        numbers = {self._topic_id_app(name): topic.id for name, topic in topics.items()}
        apps = {self._offset_app(partition): at for partition, at in offsets.items()}
        more_ids = {**begun, **numbers, **apps, self._topics_app: 1}
        try:
            self._table.append([], more_ids=more_ids, condition=condition)
        except _Moved:
            return

    def highest(self, partition: Partition, relation_id: int) -> int | None:
        """The highest commit LSN that a partition has brought of a relation."""
        return self._table.transaction_id(self._highest_app(partition, relation_id))

    # --- commits --------------------------------------------------------------------------------

    def start_relation(self, schema: TableSchema) -> Lsn:
        """
        An empty copy of a relation, which its changes follow; where that is.

        Idempotent, also for several writers at once.
        """
        app = copy_app(self._pipeline, EPOCH, schema.relation_id)

        def condition(ids: TransactionIds) -> None:
            if ids(app) is not None:
                raise _Moved

        if self._table.transaction_id(app) is None:
            point = self.watermark
            marker = markers.copy(schema, point, time.time_ns() // 1000, "first")
            files = written_files([markers.rows_table([marker])], self._table.uri)
            try:
                self._table.append(files, transaction_id=(app, point), condition=condition)
            except _Moved:
                _discard(files)
        return Lsn(self._table.transaction_id(app) or 0)

    def append(self, rows: pa.Table, span: Span) -> Committed:
        """
        Land rows and move the offsets of their partitions, both or neither; durable on return.

        Shape:
            rows: columns of the log; `commit_lsn` and `end_lsn` count from 0, in order.

        Raises:
            PartitionTaken: a partition is not where `span` begins.
            CommitFailed: the lake cannot be written now, or the answer was lost.
        """
        more_ids = {self._offset_app(p): end for p, end in span.ends.items()}
        more_ids |= {self._highest_app(p, r): lsn for (p, r), lsn in span.highest.items()}
        count = pc.max(rows.column("end_lsn")).as_py() if rows.num_rows else 0
        while True:
            watermark = self.watermark
            end = Lsn(watermark + count)
            files = written_files([_placed(rows, watermark)], self._table.uri)
            try:
                version = self._table.append(
                    files,
                    transaction_id=(self._landing, end) if count else None,
                    more_ids=more_ids,
                    condition=lambda ids, at=watermark: self._require(ids, span, at),
                    written=lambda: reach("land.commit"),
                )
            except _Moved:
                _discard(files)
                continue
            except PartitionTaken:
                _discard(files)
                raise
            reach("land.committed")
            return committed(version, files, end)

    def _require(self, ids: TransactionIds, span: Span, watermark: Lsn) -> None:
        for partition, begin in span.begins.items():
            if ids(self._offset_app(partition)) != begin:
                raise PartitionTaken
        if (ids(self._landing) or FIRST_WATERMARK) != watermark:
            raise _Moved

    # --- what is there --------------------------------------------------------------------------

    def landed(
        self, relation_ids: Collection[int], committed_at_us: Collection[int | None]
    ) -> Iterator[str]:
        """
        The event ids, as the source gave them, of landed changes at these times of commit.

        Reads the parts of files that have changes of that time.
        """
        for rows in self._rows(relation_ids, _at(committed_at_us), ["payload"]):
            yield from (event_id for event_id in _event_ids(rows) if event_id is not None)

    def since(self, relation_ids: Collection[int], committed_at_us: int) -> Iterator[LandedRow]:
        """The landed changes of relations from a time of commit on, and those without a time."""
        at = pc.field("committed_at")
        from_then = at >= pa.scalar(committed_at_us, pa.timestamp("us", "UTC"))
        columns = ["relation_id", "op", "key", "old_key", "payload"]
        for rows in self._rows(relation_ids, from_then | at.is_null(), columns):
            values = (rows.column(name).to_pylist() for name in columns[:-1])
            for relation_id, op, key, old_key, event_id in zip(
                *values, _event_ids(rows), strict=True
            ):
                if event_id is not None:
                    keys = tuple(tuple(k) for k in (key, old_key) if k is not None)
                    yield LandedRow(event_id, relation_id, op, keys)

    def _rows(
        self, relation_ids: Collection[int], condition: pc.Expression, columns: list[str]
    ) -> Iterator[pa.Table]:
        from pyarrow.dataset import dataset  # brings pandas: 0.7 s that no other command needs

        relations = pa.array(sorted(relation_ids), pa.int64())
        is_asked_for = pc.field("relation_id").isin(relations) & condition
        for file in self._table.files():
            filesystem, there = uri.filesystem(uri.child(self._table.uri, file.name))
            rows = dataset(there, schema=CHANGES, format="parquet", filesystem=filesystem)
            yield rows.to_table(columns=columns, filter=is_asked_for, use_threads=False)

    # --- names ----------------------------------------------------------------------------------

    @property
    def _topics_app(self) -> str:
        return f"{self._landing}/kafka"

    def _topic_app(self, topic: str) -> str:
        return f"{self._topics_app}/{topic}"

    def _topic_id_app(self, topic: str) -> str:
        return f"{self._topic_app(topic)}/id"

    def _offset_app(self, partition: Partition) -> str:
        return f"{self._topic_app(partition.topic)}/{partition.number}"

    def _highest_app(self, partition: Partition, relation_id: int) -> str:
        return f"{self._offset_app(partition)}/{relation_id}"


def origin(event_id: str, op: str, partition: Partition, offset: int) -> str:
    """The payload of a landed record: what it was, and where it came from."""
    place = {"op": op, "topic": partition.topic, "partition": partition.number, "offset": offset}
    return f'{ORIGIN}{event_id}",{json.dumps(place, separators=(",", ":"))[1:]}'


def _event_ids(rows: pa.Table) -> list[str | None]:
    matches = pc.extract_regex(rows.column("payload"), _EVENT_ID).to_pylist()
    return [None if match is None else match["id"] for match in matches]


def _at(committed_at_us: Collection[int | None]) -> pc.Expression:
    times = [us for us in committed_at_us if us is not None]
    at = pc.field("committed_at")
    if not times:
        return at.is_null()
    least, greatest = (pa.scalar(us, pa.timestamp("us", "UTC")) for us in (min(times), max(times)))
    during = (at >= least) & (at <= greatest)
    return during if len(times) == len(committed_at_us) else during | at.is_null()


def _placed(rows: pa.Table, watermark: Lsn) -> pa.Table:
    """The rows behind a watermark."""
    for name in ("commit_lsn", "end_lsn"):
        moved = pc.add(rows.column(name), pa.scalar(int(watermark), pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), name, moved)
    return rows


def _discard(files: Collection[parquet.DataFile]) -> None:
    for file in files:
        parquet.discard(file.path)
