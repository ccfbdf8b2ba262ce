"""
Changes of the log for sinks: in order, in batches of bounded size, each with the cursor after it.

Near the end of the log it reads commit by commit; where entries were cleaned up, and for copies, a
Spark job sorts what is needed. A copied table begins with its rows (`Intake.ROWS`) or, if the
reader has had an earlier copy of it, with the differences. Changes of a table after a gap wait for
its next copy, which has what they say.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.tail import Kind, LogCommit, Tail
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import LogGone, UnknownSchema
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers import intake
from pgstream_dagster.readers.change import Change, ChangeBatch, changes_of
from pgstream_dagster.readers.cursor import Cursor, Intake, Pending
from pgstream_dagster.readers.pieces import MEMORY_FACTOR, PIECE_ROWS, pieces
from pgstream_dagster.readers.sorted_rows import remove, sorted_files
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema

logger = logging.getLogger(__name__)

_GAP: Final = Op.GAP.value
_SEPARATOR: Final = "\0"  # in no name

COPIES_SECONDS: Final = 5.0
"""Between checks for copies that the log's entries did not show; they are tables read whole."""


@dataclass(frozen=True, slots=True)
class Selection:
    """
    The changes that a reader receives.

    `has_table`: whether a table, by namespace and name, is selected. `with_copies`: whether a table
    that is copied again comes as a `copy` marker and all its rows, instead of the differences.
    """

    has_table: Callable[[str, str], bool] = lambda _namespace, _relation: True
    operations: frozenset[str] = field(
        default=frozenset({Op.READ, Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE})
    )
    with_copies: bool = False


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a commit, after its rows."""

    watermark: Lsn | None
    version: int | None


class ChangeReader:
    """
    Reads on from a cursor; one thread uses it.

    `name` is that of the reader, under which its files are: in a folder of their own.
    """

    def __init__(
        self,
        opened: OpenPipeline,
        name: str,
        cursor: Cursor,
        selection: Selection,
        max_bytes: int,
    ) -> None:
        self.cursor = cursor
        self._opened, self._name, self._selection = opened, name, selection
        self._folder = f"{name}/{uuid.uuid4().hex}"
        self._max_bytes = max_bytes
        self._tail = Tail(opened.pipeline.lake, opened.pipeline.name, cursor.epoch)
        self._version: int | None = None  # of the last commit that was read to its end
        self._schemas: dict[int, TableSchema] = {}
        self._copied: dict[int, tuple[Lsn, list[TableSchema]]] = {}
        self._copied_at = float("-inf")
        self._running: Generator[ChangeBatch, None, bool] | None = None

    def read(self, timeout: float) -> ChangeBatch | None:
        """
        The next batch; `None` if nothing new arrives within `timeout` seconds.

        A batch may be empty: only the cursor has moved. `cursor` is that of the returned batch.
        """
        while True:
            if self._running is None:
                self._running = self._next(timeout)
            try:
                return next(self._running)
            except StopIteration as end:
                self._running = None
                if not end.value:
                    return None

    def close(self) -> None:
        """Leave nothing behind."""
        if self._running is not None:
            self._running.close()
        remove(self._opened.pipeline.lake, self._folder)

    # --- what comes next ------------------------------------------------------------------------

    def _next(self, timeout: float) -> Generator[ChangeBatch, None, bool]:
        """Batches of whatever is next; returns false if there is nothing."""
        if self.cursor.pending is None:
            self._move(pending=self._due())
        if self.cursor.pending is not None:
            yield from self._intake(self.cursor.pending)
            return True
        try:
            return (yield from self._follow(timeout))
        except LogGone as gone:
            logger.info("%s; reading by position", gone)
            return (yield from self._replay())

    def _due(self) -> Pending | None:
        """Copies to take in now: those at or below the watermark that are newer than ours."""
        if self.cursor.place is not None:
            return None  # in the middle of a transaction
        if time.monotonic() - self._copied_at >= COPIES_SECONDS:
            self._copied, self._copied_at = self._opened.copied_relations(), time.monotonic()
        copies, watermark = self.cursor.copies, self.cursor.watermark
        due = {
            relation_id: int(point)
            for relation_id, (point, versions) in self._copied.items()
            if copies.get(relation_id, -1) < point <= watermark and self._has(versions)
        }
        first = {r: point for r, point in due.items() if r not in copies}
        if first or self._selection.with_copies:
            return Pending(Intake.ROWS, first or due) if due else None
        for relation_id, point in due.items():
            return Pending(Intake.DIFFERENCES, {relation_id: point})
        return None

    def _has(self, versions: list[TableSchema]) -> bool:
        return self._selection.has_table(versions[-1].namespace, versions[-1].name)

    # --- copies ---------------------------------------------------------------------------------

    def _intake(self, pending: Pending) -> Generator[ChangeBatch]:
        """The rows or differences of copies, then the cursor with these copies."""
        lake, order = self._opened.pipeline.lake, ("relation_id", "commit_lsn", "ordinal")
        place, gaps = pending.place, dict(self.cursor.gaps)
        if place is None:  # else they are gaps since the copies
            gaps = {r: at for r, at in gaps.items() if r not in pending.points}
        with sorted_files(self._taken_in(pending), lake, self._folder, order) as files:
            for piece in pieces(files, self._max_bytes, lake.change_log):
                rows = _after(piece, place, order)
                if rows.num_rows:
                    changes = self._accepted(self._of_operations(rows), pending.points, gaps)
                    pending = msgspec.structs.replace(pending, place=_last(rows, order))
                    self._move(pending=pending, gaps=dict(gaps))
                    yield self._batch(changes, ends=False)
        self._move(copies={**self.cursor.copies, **pending.points}, gaps=gaps, pending=None)
        yield self._batch([], ends=True)

    def _taken_in(self, pending: Pending) -> DataFrame:
        spark, lake = jvm.spark(self._opened.pipeline.jvm), self._opened.pipeline.lake
        epoch, watermark = self.cursor.epoch, Lsn(self.cursor.watermark)
        if pending.intake is Intake.ROWS:
            return intake.copied_rows(spark, lake, epoch, pending.points, watermark)
        [(relation_id, point)] = pending.points.items()
        versions = self._opened.schema_log.versions(epoch, relation_id)
        delivered = Lsn(self.cursor.copies[relation_id])
        return intake.differences(
            spark, lake, versions, watermark, delivered=delivered, copied=Lsn(point)
        )

    # --- landed changes -------------------------------------------------------------------------

    def _follow(self, timeout: float) -> Generator[ChangeBatch, None, bool]:
        """The changes of the commits that are there; false if there are none."""
        if self._version is None:
            self._version = self._tail.version_of(Lsn(self.cursor.watermark))
        commits = self._tail.poll(self._version)
        if not commits and self._tail.wait(timeout):
            commits = self._tail.poll(self._version)
        yield from self._batches(self._steps(commits))
        return bool(commits)

    def _steps(self, commits: Sequence[LogCommit]) -> Iterator[pa.Table | _End]:
        """The commits' rows in pieces, and the end of each."""
        table = self._opened.pipeline.lake.change_log
        for commit in commits:
            if commit.kind is Kind.COPY:
                self._copied_at = float("-inf")
            if commit.watermark is not None and commit.watermark > self.cursor.watermark:
                yield from pieces(commit.files, self._max_bytes, table)
                yield _End(commit.watermark, commit.version)
            else:
                yield _End(None, commit.version)

    def _replay(self) -> Generator[ChangeBatch, None, bool]:
        """The changes up to the log's watermark, sorted by Spark; false if there are none."""
        upto = self._opened.watermark() or Lsn(0)
        self._version = None
        if upto <= self.cursor.watermark:
            return False
        pipeline, after = self._opened.pipeline, Lsn(self.cursor.watermark)
        spark, lake = jvm.spark(pipeline.jvm), pipeline.lake
        changes = replay.changes(spark, lake, self.cursor.epoch, after, upto)
        selected = changes.where(F.col("relation_id").isin(list(self.cursor.copies)))
        with sorted_files(selected, lake, self._folder, ("commit_lsn", "ordinal")) as files:
            rows = pieces(files, self._max_bytes, lake.change_log)
            yield from self._batches(itertools.chain(rows, [_End(upto, None)]))
        return True

    def _batches(self, steps: Iterable[pa.Table | _End]) -> Generator[ChangeBatch]:
        """
        Batches of several small commits, or of a part of a large one.

        The reader's cursor moves with each batch that is given away, not with what is gathered: an
        error in between loses what was gathered.
        """
        cursor, version, resume = self.cursor, self._version, self.cursor.place
        gaps = dict(cursor.gaps)
        changes, size, has_moved = list[Change](), 0, False
        for step in steps:
            if isinstance(step, _End):
                version = step.version
                if step.watermark is not None:
                    cursor, has_moved = _past(cursor, step.watermark, gaps), True
                    resume = cursor.place
                continue
            rows = _after(step, resume)
            if not rows.num_rows:
                continue
            if changes and not self._has_room(len(changes), size + rows.nbytes):
                yield self._given(changes, cursor, ends=_ends_before(rows, cursor.place))
                changes, size = [], 0
            changes += self._accepted(self._selected(rows), cursor.copies, gaps)
            size, has_moved = size + rows.nbytes, True
            cursor = msgspec.structs.replace(cursor, place=_last(rows), gaps=dict(gaps))
        self._version = version
        if has_moved:
            yield self._given(changes, cursor, ends=True)

    def _given(self, changes: list[Change], cursor: Cursor, *, ends: bool) -> ChangeBatch:
        self.cursor = cursor
        return self._batch(changes, ends=ends)

    def _has_room(self, rows: int, size: int) -> bool:
        return rows < PIECE_ROWS and size * MEMORY_FACTOR <= self._max_bytes

    # --- rows to changes ------------------------------------------------------------------------

    def _accepted(
        self, rows: pa.Table, copies: Mapping[int, int], gaps: dict[int, int]
    ) -> list[Change]:
        """The changes that follow the copy of their table; those after a gap wait for the next."""
        self._require_schemas(rows)
        accepted: list[Change] = []
        for change in changes_of(rows, self._schemas):
            point = copies.get(change.relation_id)
            if point is None or change.commit_lsn < point:
                continue
            if change.op == _GAP:
                gaps.setdefault(change.relation_id, change.commit_lsn)
            elif change.relation_id not in gaps:
                accepted.append(change)
        return accepted

    def _selected(self, rows: pa.Table) -> pa.Table:
        """The rows of selected tables and operations that were copied."""
        names = pc.binary_join_element_wise(
            rows.column("namespace"), rows.column("relation"), _SEPARATOR
        )
        selected = [
            name
            for name in pc.unique(names).to_pylist()
            if name is not None and self._selection.has_table(*name.split(_SEPARATOR))
        ]
        is_selected = pc.is_in(names, value_set=pa.array(selected, pa.string()))
        copied = pa.array(list(self.cursor.copies), pa.int64())
        is_copied = pc.is_in(rows.column("relation_id"), value_set=copied)
        return self._of_operations(rows.filter(pc.and_(is_selected, is_copied)))

    def _of_operations(self, rows: pa.Table) -> pa.Table:
        operations = [*self._selection.operations, _GAP]
        if self._selection.with_copies or self.cursor.is_restarted:
            operations.append(Op.COPY.value)
        return rows.filter(pc.is_in(rows.column("op"), value_set=pa.array(operations, pa.string())))

    def _require_schemas(self, rows: pa.Table) -> None:
        ids = {i for i in pc.unique(rows.column("schema_id")).to_pylist() if i is not None}
        if not ids <= self._schemas.keys():
            self._schemas = self._opened.schema_log.by_id()
        for unknown in ids - self._schemas.keys():
            raise UnknownSchema(unknown, f"read by {self._name}")

    # --- the cursor -----------------------------------------------------------------------------

    def _move(self, **changes: Any) -> None:
        self.cursor = msgspec.structs.replace(self.cursor, **changes)

    def _batch(self, changes: list[Change], *, ends: bool) -> ChangeBatch:
        return ChangeBatch(changes, self.cursor.to_json(), ends)


def _past(cursor: Cursor, watermark: Lsn, gaps: Mapping[int, int]) -> Cursor:
    """The cursor after a landing; its place stays if it lies behind that."""
    place = cursor.place
    if place is not None and place[0] < watermark:
        place = None
    return msgspec.structs.replace(cursor, watermark=int(watermark), place=place, gaps=dict(gaps))


def _ends_before(rows: pa.Table, place: Sequence[int] | None) -> bool:
    """Whether these rows begin a transaction, after a place."""
    return place is None or place[0] != rows.column("commit_lsn")[0].as_py()


def _after(
    rows: pa.Table, place: Sequence[int] | None, order: Sequence[str] = ("commit_lsn", "ordinal")
) -> pa.Table:
    """The rows after a place in an order of columns."""
    if place is None:
        return rows
    is_after = pc.greater(rows.column(order[-1]), place[-1])
    for name, value in reversed(list(zip(order[:-1], place[:-1], strict=True))):
        column = rows.column(name)
        is_equal = pc.and_(pc.equal(column, value), is_after)
        is_after = pc.or_(pc.greater(column, value), is_equal)
    return rows.filter(is_after)


def _last(rows: pa.Table, order: Sequence[str] = ("commit_lsn", "ordinal")) -> tuple[int, ...]:
    return tuple(rows.column(name)[-1].as_py() for name in order)
