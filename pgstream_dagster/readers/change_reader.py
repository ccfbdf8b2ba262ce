"""
Changes of the log for sinks: in order, in batches of bounded size, each with the cursor after it.

Near the end of the log it reads commit by commit; where entries were cleaned up, and for copies, a
Spark job sorts what is needed. A copied table begins with its rows (`Intake.ROWS`) or, if the
reader has had an earlier copy of it, with the differences. Changes of a table after a gap wait for
its next copy, which has what they say. A table of which changes were left out begins again
when it is selected again.
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

from pgstream_dagster.changelog.tail import Kind, LogCommit
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import LogGone, UnknownSchema
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers import intake
from pgstream_dagster.readers.change import ChangeBatch, LoggedChanges, Place
from pgstream_dagster.readers.cursor import Cursor, Intake, Pending
from pgstream_dagster.readers.pieces import MEMORY_FACTOR, PIECE_ROWS, pieces
from pgstream_dagster.readers.sorted_rows import remove, sorted_files
from pgstream_dagster.readers.unread import Unread
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema, by_id

logger = logging.getLogger(__name__)

_GAP: Final = Op.GAP.value
_CONTENT: Final = frozenset({Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE, Op.GAP})
"""What a reader lacks that passes over it."""

_NONE_LEFT: Final[Mapping[int, Place]] = {}

_ACCEPTED_BY: Final = ("relation_id", "commit_lsn", "ordinal", "op")

_SEPARATOR: Final = "\0"  # in no name

COPIES_SECONDS: Final = 1.0
"""Between checks for copies that the log's entries did not show; they are tables read whole."""


@dataclass(frozen=True, slots=True)
class Selection:
    """
    The changes that a reader receives.

    `has_table`: whether a table, by namespace and name, is selected. `with_copies`: whether a table
    that is copied again comes as a `copy` marker and all its rows, instead of the differences.
    `takes_back`: whether a table of which changes were left out comes so when it is selected again,
    instead of the changes from there on.
    """

    has_table: Callable[[str, str], bool] = lambda _namespace, _relation: True
    operations: frozenset[str] = field(
        default=frozenset({Op.READ, Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE})
    )
    with_copies: bool = False
    takes_back: bool = False


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
        self._unread = Unread(opened)
        self._schemas: dict[int, TableSchema] = {}
        self._copied: dict[int, Lsn] = {}
        self._history: dict[int, list[tuple[Lsn, TableSchema]]] = {}
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

    @property
    def is_whole(self) -> bool:
        """Whether every copy at or below the cursor's watermark is taken in."""
        return self.cursor.pending is None and self._due() is None

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
            self._look()
        copies, watermark = self.cursor.copies, self.cursor.watermark
        due = {
            relation_id: point
            for relation_id, point in self._copied.items()
            if copies.get(relation_id, -1) < point <= watermark and self._has(relation_id)
        }
        first = {r: point for r, point in due.items() if r not in copies}
        if first or self._selection.with_copies:
            return Pending(Intake.ROWS, first or due) if due else None
        for relation_id, point in due.items():
            return Pending(Intake.DIFFERENCES, {relation_id: point})
        return None

    def _look(self) -> None:
        """Read which relations are copied, and which names they had."""
        copied = self._opened.copied_relations()
        self._copied = {relation_id: point for relation_id, (point, _) in copied.items()}
        self._history = {}
        for since, version in self._opened.schema_log.history(self.cursor.epoch):
            self._history.setdefault(version.relation_id, []).append((since, version))
        self._copied_at = time.monotonic()

    def _has(self, relation_id: int) -> bool:
        """Whether a relation is selected under the name that it has where the reader is."""
        history = self._history[relation_id]
        before = [version for since, version in history if since <= self.cursor.watermark]
        version = before[-1] if before else history[0][1]
        return self._selection.has_table(version.namespace, version.name)

    # --- copies ---------------------------------------------------------------------------------

    def _intake(self, pending: Pending) -> Generator[ChangeBatch]:
        """The rows or differences of copies, then the cursor with these copies."""
        lake, order = self._opened.pipeline.lake, ("relation_id", "commit_lsn", "ordinal")
        place, gaps = pending.place, dict(self.cursor.gaps)
        if place is None:  # else they are gaps since the copies
            gaps = pending.left_open(gaps)
        # Differences are those at the gap, if there is one; what follows it waits.
        closed_by = gaps if pending.intake is Intake.ROWS else {}
        with sorted_files(self._taken_in(pending), lake, self._folder, order) as files:
            for piece in pieces(files, self._max_bytes, lake.change_log):
                rows = _after(piece, place, order)
                if rows.num_rows:
                    accepted = self._accepted(self._of_operations(rows), pending.points, closed_by)
                    last = rows.column("relation_id")[-1].as_py(), *_last(rows)
                    pending = msgspec.structs.replace(pending, place=last)
                    self._move(pending=pending, gaps=dict(gaps))
                    yield self._batch([accepted], ends=False, comes_late=True)
        self.cursor = _taken(self.cursor, pending, gaps)
        yield self._batch([], ends=True)

    def _taken_in(self, pending: Pending) -> DataFrame:
        spark, lake = jvm.spark(self._opened.pipeline.jvm), self._opened.pipeline.lake
        epoch, watermark = self.cursor.epoch, self.cursor.watermark
        if pending.intake is Intake.ROWS:
            return intake.copied_rows(spark, lake, epoch, pending.points, watermark)
        [(relation_id, point)] = pending.points.items()
        versions = self._versions(relation_id)
        delivered = self.cursor.copies[relation_id]
        return intake.differences(
            spark, lake, versions, watermark, delivered=delivered, copied=point
        )

    def _versions(self, relation_id: int) -> list[TableSchema]:
        """
        The versions of a relation that had begun where the reader is, oldest first.

        Differences that are computed once more, after a stop, are the same whatever came since.
        """
        history, at = self._opened.schema_log.history(self.cursor.epoch), self.cursor.watermark
        begun = (v for since, v in history if v.relation_id == relation_id and since <= at)
        return list(by_id(begun).values())

    # --- landed changes -------------------------------------------------------------------------

    def _follow(self, timeout: float) -> Generator[ChangeBatch, None, bool]:
        """The changes of the commits that are there; false if there are none."""
        commits = self._unread.commits(self.cursor.watermark, timeout)
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
        unread = self._unread.rows(self.cursor.watermark, self.cursor.copies)
        if unread is None:
            return False
        (changes, upto), lake = unread, self._opened.pipeline.lake
        with sorted_files(changes, lake, self._folder, ("commit_lsn", "ordinal")) as files:
            rows = pieces(files, self._max_bytes, lake.change_log)
            yield from self._batches(itertools.chain(rows, [_End(upto, None)]))
        return True

    def _batches(self, steps: Iterable[pa.Table | _End]) -> Generator[ChangeBatch]:
        """
        Batches of several small commits, or of a part of a large one.

        The reader's cursor moves with each batch that is given away, not with what is gathered: an
        error in between loses what was gathered.
        """
        cursor, version, resume = self.cursor, self._unread.version, self.cursor.place
        gaps = dict(cursor.gaps)
        gathered, size, has_moved = list[pa.Table](), 0, False
        for step in steps:
            if isinstance(step, _End):
                version = step.version
                if step.watermark is not None:
                    cursor, has_moved = _past(cursor, step.watermark, gaps), True
                    resume = cursor.place
                continue
            rows = _ending_after(_after(step, resume), cursor.watermark)
            if not rows.num_rows:
                continue
            count = sum(table.num_rows for table in gathered)
            if count and not self._has_room(count, size + rows.nbytes):
                yield self._given(gathered, cursor, ends=_ends_before(rows, cursor.place))
                gathered, size = [], 0
            selected, left = self._selected(rows, cursor.copies)
            gathered.append(self._accepted(selected, cursor.copies, gaps, left))
            size, has_moved = size + rows.nbytes, True
            cursor = msgspec.structs.replace(cursor, place=_last(rows), gaps=dict(gaps))
            if left:
                cursor, self._copied_at = _without(cursor, left), float("-inf")
        self._unread.version = version
        if has_moved:
            yield self._given(gathered, cursor, ends=True)

    def _given(self, gathered: list[pa.Table], cursor: Cursor, *, ends: bool) -> ChangeBatch:
        self.cursor = cursor
        return self._batch(gathered, ends=ends)

    def _has_room(self, rows: int, size: int) -> bool:
        return rows < PIECE_ROWS and size * MEMORY_FACTOR <= self._max_bytes

    # --- rows to changes ------------------------------------------------------------------------

    def _accepted(
        self,
        rows: pa.Table,
        copies: Mapping[int, Lsn],
        gaps: dict[int, Lsn],
        left: Mapping[int, Place] = _NONE_LEFT,
    ) -> pa.Table:
        """The changes that follow the copy of their table; those after a gap wait for the next."""
        self._require_schemas(rows)
        if not rows.num_rows:
            return rows
        is_first = pc.min(rows.column("commit_lsn")).as_py() < max(copies.values(), default=0)
        has_gap = pc.any(pc.equal(rows.column("op"), _GAP)).as_py()
        if not (is_first or has_gap or gaps or left):
            return rows
        columns = (rows.column(name).to_pylist() for name in _ACCEPTED_BY)
        accepted: list[bool] = []
        for relation_id, lsn, ordinal, op in zip(*columns, strict=True):
            point, limit = copies.get(relation_id), left.get(relation_id)
            is_taken = point is not None and lsn >= point
            is_taken = is_taken and (limit is None or (lsn, ordinal) <= limit)
            if is_taken and op == _GAP:
                gaps[relation_id] = Lsn(lsn)
            accepted.append(is_taken and op != _GAP and relation_id not in gaps)
        return rows.filter(pa.array(accepted, pa.bool_()))

    def _selected(
        self, rows: pa.Table, copies: Mapping[int, Lsn]
    ) -> tuple[pa.Table, dict[int, Place]]:
        """
        The rows of selected tables and operations that were copied.

        And the relations of which others are left out, with the place of the first.
        """
        copied = pa.array(list(copies), pa.int64())
        is_copied = pc.is_in(rows.column("relation_id"), value_set=copied)
        rows = self._of_operations(_where(rows, is_copied))
        names = pc.binary_join_element_wise(
            rows.column("namespace"), rows.column("relation"), _SEPARATOR
        )
        has_table = self._selection.has_table
        selected = [n for n in pc.unique(names).to_pylist() if has_table(*n.split(_SEPARATOR))]
        is_selected = pc.is_in(names, value_set=pa.array(selected, pa.string()))
        taken = _where(rows, is_selected)
        if not self._selection.takes_back or len(taken) == len(rows):
            return taken, {}
        return taken, _first_of(rows.filter(pc.invert(is_selected)), copies)

    def _of_operations(self, rows: pa.Table) -> pa.Table:
        """The rows of selected operations, and markers."""
        operations, op = self._selection.operations, rows.column("op")
        begins_again = self.cursor.is_restarted and Op.READ in operations
        chosen = [*operations, _GAP]
        if self._selection.with_copies or begins_again:
            chosen.append(Op.COPY.value)
        is_chosen = pc.is_in(op, value_set=pa.array(chosen, pa.string()))
        if self.cursor.left and Op.READ in operations:
            left = pa.array(self.cursor.left, pa.int64())
            is_back = pc.is_in(rows.column("relation_id"), value_set=left)
            is_chosen = pc.or_(is_chosen, pc.and_(is_back, pc.equal(op, Op.COPY.value)))
        return _where(rows, is_chosen)

    def _require_schemas(self, rows: pa.Table) -> None:
        ids = {i for i in pc.unique(rows.column("schema_id")).to_pylist() if i is not None}
        if not ids <= self._schemas.keys():
            self._schemas = self._opened.schema_log.by_id()
        for unknown in ids - self._schemas.keys():
            raise UnknownSchema(unknown, f"read by {self._name}")

    # --- the cursor -----------------------------------------------------------------------------

    def _move(self, **changes: Any) -> None:
        self.cursor = msgspec.structs.replace(self.cursor, **changes)

    def _batch(
        self, rows: Sequence[pa.Table], *, ends: bool, comes_late: bool = False
    ) -> ChangeBatch:
        changes = LoggedChanges(pa.concat_tables(rows), self._schemas) if rows else []
        is_late = comes_late or self.cursor.is_restarted
        return ChangeBatch(changes, self.cursor.to_json(), ends, is_late)


def _taken(cursor: Cursor, pending: Pending, gaps: dict[int, Lsn]) -> Cursor:
    """The cursor after copies were taken in."""
    points, at = pending.points, cursor.watermark
    compared = {r: w for r, w in cursor.compared.items() if w == at}
    if pending.intake is Intake.DIFFERENCES:
        compared |= dict.fromkeys(points, at)
    return msgspec.structs.replace(
        cursor,
        copies={**cursor.copies, **points},
        gaps=gaps,
        pending=None,
        left=tuple(r for r in cursor.left if r not in points),
        compared=compared,
    )


def _without(cursor: Cursor, left: Mapping[int, Place]) -> Cursor:
    """The cursor after changes of relations were left out."""
    copies = {r: point for r, point in cursor.copies.items() if r not in left}
    return msgspec.structs.replace(cursor, copies=copies, left=(*cursor.left, *left))


def _first_of(rows: pa.Table, copies: Mapping[int, Lsn]) -> dict[int, Place]:
    """The place of the first row of each relation that changes what it holds since its copy."""
    first: dict[int, Place] = {}
    columns = (rows.column(name).to_pylist() for name in _ACCEPTED_BY)
    for relation_id, lsn, ordinal, op in zip(*columns, strict=True):
        if op in _CONTENT and lsn >= copies[relation_id]:
            first.setdefault(relation_id, Place(Lsn(lsn), ordinal))
    return first


def _past(cursor: Cursor, watermark: Lsn, gaps: Mapping[int, Lsn]) -> Cursor:
    """The cursor after a landing; its place stays if it lies behind that."""
    place = cursor.place
    if place is not None and place.commit_lsn < watermark:
        place = None
    return msgspec.structs.replace(cursor, watermark=watermark, place=place, gaps=dict(gaps))


def _ends_before(rows: pa.Table, place: Place | None) -> bool:
    """Whether these rows begin a transaction, after a place."""
    return place is None or place.commit_lsn != rows.column("commit_lsn")[0].as_py()


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


def _ending_after(rows: pa.Table, watermark: Lsn) -> pa.Table:
    """The rows of transactions that end after a watermark, which may lie within a landing."""
    return _where(rows, pc.greater(rows.column("end_lsn"), int(watermark)))


def _where(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """The rows of a mask: nearly always all of them, and to filter copies them."""
    return rows if pc.all(mask, skip_nulls=False).as_py() else rows.filter(mask)


def _last(rows: pa.Table) -> Place:
    """The place of the last row."""
    return Place(Lsn(rows.column("commit_lsn")[-1].as_py()), rows.column("ordinal")[-1].as_py())
