"""Where a sink continues: at its stored progress, or at the start that a person chose."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from pgstream_dagster.changelog.replay import open_gaps
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import LogBehind, OtherLog, ProgressMissing
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks.state import Request


@dataclass(frozen=True, slots=True)
class Start:
    """
    Where a sink continues when its target is opened.

    `stored` is the progress in the lake. What `kept` stands for in its methods is the progress that
    the target has, which is newer unless the sink was reset since.
    """

    opened: OpenPipeline
    sink: str
    request: Request
    config: SinkConfig
    stored: Cursor | None

    @property
    def is_reset(self) -> bool:
        """Whether a person has asked for another start, and it is not stored yet."""
        first = Request().generation
        return self.request.generation > (self.stored.generation if self.stored else first)

    def leaves_log(self, kept: str | None) -> bool:
        """
        Whether the target's progress is in another log or later epoch, and a reset begins in this.

        Raises:
            OtherLog, LogBehind: it is not in this log, and no person has asked to leave it.
        """
        cursor = Cursor.from_json(kept) if kept else None
        if cursor is None:
            return False
        if not self.is_reset:
            self._require_known(cursor)
        return self._is_of_another(cursor) or cursor.epoch > self.opened.epoch

    def cursor(self, kept: str | None) -> Cursor:
        """
        The cursor to read on from.

        It may be of a former epoch: what landed in that is delivered to its end. After that the
        tables of the new one begin again, each with a `copy` marker and all rows, as the tables of
        another server are other relations, which may have other columns. So do they after a reset:
        the target may have rows of what was delivered before.

        A cursor that does not say which log it is of was stored before cursors did, and is of this
        one. A generation that the lake does not know was asked for before it was restored.

        Raises:
            OtherLog, LogBehind
        """
        opened, generation = self.opened, self.request.generation
        self.leaves_log(kept)
        if self.is_reset:
            begun = beginning(opened, generation, self.request.start or self.config.start)
            return msgspec.structs.replace(begun, is_restarted=True)
        cursors = [Cursor.from_json(kept) if kept else None, self.stored]
        cursor = next((c for c in cursors if c and c.generation >= generation), None)
        if cursor is None:
            return beginning(opened, generation, self._first_start)
        self._require_known(cursor)
        if cursor.epoch != opened.epoch and _is_at_end(opened, cursor):
            again = beginning(opened, generation, "copy")
            return msgspec.structs.replace(again, is_restarted=True)
        return msgspec.structs.replace(
            cursor, generation=generation, log=opened.log_id, redriven=()
        )

    @property
    def _first_start(self) -> str:
        """Of a sink that left off in a former log: what it did not deliver is in the copy."""
        if self.request.delivered_before is not None:
            return "copy"
        return self.request.start or self.config.start

    def require_kept(self, kept: str | None) -> None:
        """
        Ensure that a target that keeps the progress has it, once a copy was delivered to its end.

        What a sink has delivered that did not begin with copies, nothing here says.

        Raises:
            ProgressMissing
        """
        begun = self.request.start or self.config.start
        if kept or self.is_reset or self.stored is None or begun != "copy":
            return
        if self.stored.copies:
            raise ProgressMissing(self.sink, self.stored.end)

    def replaces(self, kept: str | None) -> bool:
        """Whether the target has progress of another log or start, or of one without a name."""
        if not kept:
            return False
        cursor = Cursor.from_json(kept)
        return (cursor.log, cursor.generation) != (self.opened.log_id, self.request.generation)

    def _is_of_another(self, cursor: Cursor) -> bool:
        return cursor.log not in ("", self.opened.log_id)

    def _require_known(self, cursor: Cursor) -> None:
        """
        Ensure that the log has what was delivered up to a cursor, so that it can be read on.

        A former epoch may be ahead: after its end all tables begin again.

        Raises:
            OtherLog, LogBehind
        """
        opened, at = self.opened, cursor.end
        watermark = opened.watermark() or Lsn(0)
        if self._is_of_another(cursor):
            lake = opened.pipeline.lake.root
            raise OtherLog(self.sink, cursor.log, at, opened.log_id, watermark, lake)
        if cursor.epoch < opened.epoch:
            return
        delivered = cursor.epoch, at
        if cursor.epoch > opened.epoch or at > watermark:
            raise LogBehind(self.sink, delivered, opened.epoch, watermark)
        if (part := lost_at(opened, at)) is not None:
            raise LogBehind(self.sink, delivered, opened.epoch, *part)


def of_epoch(opened: OpenPipeline, epoch: int) -> OpenPipeline:
    """The pipeline as it was in an epoch."""
    return replace(opened, identity=replace(opened.identity, epoch=epoch))


def _is_at_end(opened: OpenPipeline, cursor: Cursor) -> bool:
    """Whether everything of the cursor's epoch was delivered."""
    end = of_epoch(opened, cursor.epoch).watermark() or 0
    return cursor.watermark >= end and cursor.pending is None


def lost_at(opened: OpenPipeline, position: Lsn) -> tuple[Lsn, Lsn] | None:
    """The part of the history that the log lacks, and that this position is in, if there is one."""
    lost = opened.ledger.lost(opened.epoch)
    return next(((after, until) for after, until in lost if after < position < until), None)


def beginning(opened: OpenPipeline, generation: int, start: str) -> Cursor:
    """
    The cursor of a sink that has delivered nothing.

    It begins at the oldest copy, so that what landed since comes in the order of its commits. A
    table of which changes are missing at the start waits for its next copy. At a position each
    table has the copy that was its newest there. A position in a part that the log lacks is where
    that begins.
    """
    watermark = opened.require_watermark()
    if start == "copy":
        points = [point for point, _ in opened.copied_relations().values()]
        first = _before_lost(opened, min([watermark, *points]))
        return Cursor(generation, opened.epoch, first, log=opened.log_id)
    chosen = watermark if start == "now" else min(Lsn.parse(start), watermark)
    position = _before_lost(opened, chosen)
    copies = opened.copies_at(position)
    pipeline = opened.pipeline
    gaps = open_gaps(jvm.spark(pipeline.jvm), pipeline.lake, opened.epoch, copies, position)
    return Cursor(generation, opened.epoch, position, copies=copies, gaps=gaps, log=opened.log_id)


def _before_lost(opened: OpenPipeline, position: Lsn) -> Lsn:
    part = lost_at(opened, position)
    return position if part is None else part[0]
