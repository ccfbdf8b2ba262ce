"""Where a sink goes on: at its stored progress, or at the start that a person chose."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from pgstream_dagster.changelog.replay import open_gaps
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import OtherLog
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks.state import Request


@dataclass(frozen=True, slots=True)
class Start:
    """
    Where a sink goes on when its target is opened.

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
        Whether the target's progress is in another log, and a reset begins in this one.

        Raises:
            OtherLog: it is in another log, and no person has asked to leave that.
        """
        cursor = Cursor.from_json(kept) if kept else None
        if cursor is None or cursor.log in ("", self.opened.log_id):
            return False
        if not self.is_reset:
            raise self._other_log(cursor)
        return True

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
            OtherLog
        """
        opened, generation = self.opened, self.request.generation
        self.leaves_log(kept)
        if self.is_reset:
            begun = beginning(opened, generation, self.request.start or self.config.start)
            return msgspec.structs.replace(begun, is_restarted=True)
        cursors = [Cursor.from_json(kept) if kept else None, self.stored]
        cursor = next((c for c in cursors if c and c.generation >= generation), None)
        if cursor is None:
            return beginning(opened, generation, self.request.start or self.config.start)
        if cursor.log not in ("", opened.log_id):
            raise self._other_log(cursor)
        if cursor.epoch != opened.epoch and _is_at_end(opened, cursor):
            again = beginning(opened, generation, "copy")
            return msgspec.structs.replace(again, is_restarted=True)
        return msgspec.structs.replace(
            cursor, generation=generation, log=opened.log_id, redriven=()
        )

    def replaces(self, kept: str | None) -> bool:
        """Whether the target has progress of another log or start, or of one without a name."""
        if not kept:
            return False
        cursor = Cursor.from_json(kept)
        return (cursor.log, cursor.generation) != (self.opened.log_id, self.request.generation)

    def _other_log(self, cursor: Cursor) -> OtherLog:
        opened = self.opened
        watermark, lake = opened.watermark() or Lsn(0), opened.pipeline.lake.root
        at = cursor.watermark
        return OtherLog(self.sink, cursor.log, at, opened.log_id, watermark, lake)


def of_epoch(opened: OpenPipeline, epoch: int) -> OpenPipeline:
    """The pipeline as it was in an epoch."""
    return replace(opened, identity=replace(opened.identity, epoch=epoch))


def _is_at_end(opened: OpenPipeline, cursor: Cursor) -> bool:
    """Whether everything of the cursor's epoch was delivered."""
    end = of_epoch(opened, cursor.epoch).watermark() or 0
    return cursor.watermark >= end and cursor.pending is None


def beginning(opened: OpenPipeline, generation: int, start: str) -> Cursor:
    """
    The cursor of a sink that has delivered nothing.

    It begins at the oldest copy, so that what landed since comes in the order of its commits. A
    table of which changes are missing at the start waits for its next copy.
    """
    watermark = opened.require_watermark()
    points = {r: point for r, (point, _) in opened.copied_relations().items()}
    if start == "copy":
        first = min([watermark, *points.values()])
        return Cursor(generation, opened.epoch, first, log=opened.log_id)
    position = watermark if start == "now" else min(Lsn.parse(start), watermark)
    copies = {r: point for r, point in points.items() if point <= position}
    pipeline = opened.pipeline
    gaps = open_gaps(jvm.spark(pipeline.jvm), pipeline.lake, opened.epoch, copies, position)
    return Cursor(generation, opened.epoch, position, copies=copies, gaps=gaps, log=opened.log_id)
