"""
A table as it was at a position or a time: from its history where there is one, else from the log.

The state at a position is what every transaction that commits before it has left; a copy at the
position is that state.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.log_files import read_log
from pgstream_dagster.changelog.sink_log import SinkLog
from pgstream_dagster.changelog.spans import Span, is_before, spans
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import AsOfGap, BeforeFirstCopy, NoSuchMoment, NotInLog, NotYetInLog
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import names_of
from pgstream_dagster.tables.columns import layout, quoted
from pgstream_dagster.tables.history.build import markers
from pgstream_dagster.tables.history.chosen import related
from pgstream_dagster.tables.history.columns import (
    FROM_EPOCH,
    FROM_LSN,
    FROM_ORDINAL,
    TO_EPOCH,
    TO_LSN,
    TO_ORDINAL,
    history_layout,
)
from pgstream_dagster.tables.history.lineage import Relation
from pgstream_dagster.tables.history.merge import progress_of
from pgstream_dagster.tables.history.periods import Marker, Period, gap_at, periods
from pgstream_dagster.tables.history.target import HistoryTarget
from pgstream_dagster.tables.read_typed import TypedRows
from pgstream_dagster.tables.rows import typed_rows
from pgstream_dagster.tables.types import RESCUED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgstream_dagster.config.column_types import ColumnTypes
    from pgstream_dagster.pipeline import OpenPipeline, Pipeline

_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)


@named
def read_as_of(pipeline: Pipeline, table: str, at: Lsn | datetime) -> TypedRows:
    """
    The rows of a table as they were; of every captured table, with or without a typed one.

    A position is one of the newest epoch. At a time: after the last transaction, by position, that
    was committed at that time or before, as far as the log is. Runs small Spark jobs at once.

    Shape:
        result: the columns of the table's newest version, typed, and `_rescued`; without positions.
            `uri` is the table that was read, `position` that of the rows.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NotInLog: no table of this name was copied.
        NotYetInLog: the log has not reached the position.
        BeforeFirstCopy: the log has no rows of the table then.
        AsOfGap: changes of the table are missing then.
        NoSuchMoment: the time has no zone.
    """
    with pipeline.open() as opened:
        reading = _Reading.read(opened, table, at)
        rows, uri = reading.from_history() or reading.from_log()
    return TypedRows(rows, uri, reading.point)


def moment(written: str) -> Lsn | datetime:
    """
    A position such as 16/B374D848, or a time in ISO 8601 with its zone.

    Raises:
        NoSuchMoment: it is neither.
    """
    try:
        at = Lsn.parse(written) if "/" in written else datetime.fromisoformat(written)
    except ValueError as error:
        raise NoSuchMoment(written) from error
    if isinstance(at, datetime) and at.tzinfo is None:
        raise NoSuchMoment(written)
    return at


@dataclass(frozen=True)
class _Reading:
    """What is read: a table at a point of an epoch, and the relation that it was then."""

    opened: OpenPipeline
    spark: SparkSession
    chain: Sequence[Relation]
    relation: Relation
    epoch: int
    point: Lsn

    @classmethod
    def read(cls, opened: OpenPipeline, table: str, at: Lsn | datetime) -> _Reading:
        watermark = opened.require_watermark()
        relations, name = related(opened, watermark), canonical(table)
        oids = [oid for oid, copied in relations.present.items() if copied.newest.full_name == name]
        if not oids:
            raise NotInLog(table)
        # Of several the one that took the name last: the others were dropped.
        last = max(oids, key=lambda oid: relations.present[oid].named_at)
        chain = relations.chain(last)
        spark = jvm.spark(opened.pipeline.jvm)
        if isinstance(at, Lsn):
            if at > watermark:
                raise NotYetInLog(table, at, watermark)
            epoch, point = opened.epoch, at
        else:
            epoch, point = _last_committed(opened, spark, at)
        then = _relation_at(opened, spark, chain, (epoch, point), str(at))
        for after, until in opened.ledger.lost(epoch):
            if after < point < until:
                raise AsOfGap(name, str(at), after, until)
        return cls(opened, spark, chain, then, epoch, point)

    def from_history(self) -> tuple[DataFrame, str] | None:
        """From the history; `None`: there is none that has the point and the newest columns."""
        opened, lake = self.opened, self.opened.pipeline.lake
        if not all(version.key for r in self.chain for version in r.versions):
            return None
        log = SinkLog(lake, opened.gateway, uri=lake.typed_tables)
        with closing(log):
            progress = progress_of(log, opened.pipeline.name).read(opened.epoch)
        if (opened.epoch, Lsn(progress.position)) < (self.epoch, self.point):
            return None
        present = self.chain[-1]
        columns = history_layout([r.versions for r in self.chain], _options(opened, present))
        for name, entry in progress.tables.items():
            same = (entry.relation_id, entry.columns) == (present.relation_id, columns.digest())
            uri = lake.typed_table(name)
            if same and entry.held is None and self._is_history(uri, present, entry.copy):
                rows = self.spark.read.format("delta").load(uri).where(self._is_valid())
                plain = layout(present.versions[-1], _options(opened, present))
                shown = [
                    F.col(quoted(columns.columns[n].name)).alias(column.name)
                    for n, column in plain.columns.items()
                ]
                return rows.select(*shown, RESCUED), uri
        return None

    def _is_history(self, uri: str, relation: Relation, copy: int) -> bool:
        """Whether a folder has the history still: a table of the source may have got its name."""
        state = HistoryTarget(uri, self.spark, self.opened.gateway).state()
        of_copy = (self.opened.pipeline.name, self.opened.epoch, relation.relation_id, Lsn(copy))
        return state is not None and state.build.is_of(*of_copy)

    def from_log(self) -> tuple[DataFrame, str]:
        """The fold of the log up to the point."""
        lake, relation = self.opened.pipeline.lake, self.relation
        changes = replay.relation_changes(
            self.spark, lake, relation.epoch, relation.relation_id, before=self.point
        )
        span = spans(changes).get(relation.relation_id, Span())
        folded = fold(changes, relation.versions, span=span)
        columns = layout(relation.versions[-1], _options(self.opened, relation))
        rows = typed_rows(folded, columns, relation.epoch)
        names = [quoted(column.name) for column in columns.columns.values()]
        return rows.select(*names, RESCUED), lake.change_log

    def _is_valid(self) -> Column:
        begun = self._is_past(FROM_EPOCH, FROM_LSN, FROM_ORDINAL)
        ended = self._is_past(TO_EPOCH, TO_LSN, TO_ORDINAL)
        return begun & ~F.coalesce(ended, F.lit(False))  # noqa: FBT003

    def _is_past(self, epoch: str, lsn: str, ordinal: str) -> Column:
        is_before = (F.col(lsn) < int(self.point)) | (
            (F.col(lsn) == int(self.point)) & (F.col(ordinal) < 0)
        )
        return (F.col(epoch) < self.epoch) | ((F.col(epoch) == self.epoch) & is_before)


def _options(opened: OpenPipeline, relation: Relation) -> dict[str, ColumnTypes]:
    """The types of columns that the pipeline file chooses."""
    tables = opened.pipeline.config.tables
    if tables is None:
        return {}
    versions = opened.schema_log.named_versions((relation.epoch, relation.relation_id))
    return tables.columns_of(*names_of(versions))


def _last_committed(opened: OpenPipeline, spark: SparkSession, at: datetime) -> tuple[int, Lsn]:
    """
    Epoch and end of the last transaction committed at a time or before; 0 if none was.

    A copy counts as one that was committed when its snapshot was taken. Where the log lacks what
    was committed next, the point is in what is lost, unless the transaction was of that moment.
    """
    if at.tzinfo is None:
        raise NoSuchMoment(at.isoformat())
    at_us = (at - _UNIX) // timedelta(microseconds=1)
    is_then = F.col("committed_at") <= F.timestamp_micros(F.lit(at_us))
    is_landed = is_before(opened.epoch, opened.require_watermark())
    other = F.col("op").isin(Op.READ.value, Op.GAP.value)
    place = F.max(F.struct("epoch", "end_lsn", F.unix_micros("committed_at")))
    rows = read_log(spark, opened.pipeline.lake).where(is_landed & ~other)
    [(last,)] = rows.where(is_then).select(place).collect()
    if last is None:
        return 0, Lsn(0)
    epoch, point, last_us = last[0], Lsn(last[1]), last[2]
    for after, until in opened.ledger.lost(epoch):
        later = (F.col("epoch") == epoch) & F.col("end_lsn").between(point + 1, int(after))
        if last_us < at_us and point <= after < until and rows.where(later).isEmpty():
            return epoch, Lsn(until - 1)
    return epoch, point


def _relation_at(
    opened: OpenPipeline,
    spark: SparkSession,
    chain: Sequence[Relation],
    place: tuple[int, Lsn],
    asked: str,
) -> Relation:
    """The relation that the table was at a place, if all of its rows are in the log there."""
    name = chain[-1].versions[-1].full_name
    epoch, point = place
    first: Marker | None = None
    for relation in reversed(chain):
        parts = _periods(opened, spark, relation)
        if not parts:
            continue
        first = parts[0].start
        if (relation.epoch, first.place) >= (epoch, Place(point, 0)):
            continue
        if relation.epoch < epoch:
            raise AsOfGap(name, asked, point, None)
        if (gap := gap_at(parts, point)) is not None:
            raise AsOfGap(name, asked, *gap)
        return relation
    if first is None:
        raise NotInLog(name)
    raise BeforeFirstCopy(name, asked, first.place.commit_lsn, _iso(first.committed_at_us))


def _periods(opened: OpenPipeline, spark: SparkSession, relation: Relation) -> list[Period]:
    changes = replay.relation_changes(
        spark, opened.pipeline.lake, relation.epoch, relation.relation_id
    )
    return periods(markers(changes.where(is_before(opened.epoch, opened.require_watermark()))))


def _iso(at_us: int | None) -> str:
    return "?" if at_us is None else (_UNIX + timedelta(microseconds=at_us)).isoformat()
