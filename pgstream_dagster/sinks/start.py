"""Where a sink goes on: at its stored progress, or at the start that a person chose."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from pgstream_dagster.changelog.replay import open_gaps
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.delta import jvm
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks.state import Request


def first_cursor(
    opened: OpenPipeline,
    request: Request,
    config: SinkConfig,
    stored: Cursor | None,
    kept: str | None,
) -> Cursor:
    """
    The cursor to read on from.

    It may be of a former epoch: what landed in that is delivered to its end. After that the tables
    of the new one begin again, each with a `copy` marker and all rows, as the tables of another
    server are other relations, which may have other columns.

    Shape:
        stored: the progress in the lake; `kept`: the one in the target, which is newer unless the
            sink was reset since.
    """
    cursors = [Cursor.from_json(kept) if kept else None, stored]
    cursor = next((c for c in cursors if c and c.generation == request.generation), None)
    if cursor is None:
        first = beginning(opened, request.generation, request.start or config.start)
        has_rows = config.postgres is not None and request.start is not None  # of an earlier start
        return msgspec.structs.replace(first, is_restarted=has_rows)
    if cursor.epoch != opened.epoch and _is_at_end(opened, cursor):
        again = beginning(opened, request.generation, "copy")
        return msgspec.structs.replace(again, is_restarted=True)
    return msgspec.structs.replace(cursor, redriven=())


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
    points = {r: int(point) for r, (point, _) in opened.copied_relations().items()}
    if start == "copy":
        return Cursor(generation, opened.epoch, min([int(watermark), *points.values()]))
    position = watermark if start == "now" else min(Lsn.parse(start), watermark)
    copies = {r: point for r, point in points.items() if point <= position}
    pipeline = opened.pipeline
    gaps = open_gaps(jvm.spark(pipeline.jvm), pipeline.lake, opened.epoch, copies, position)
    return Cursor(generation, opened.epoch, int(position), copies=copies, gaps=gaps)
