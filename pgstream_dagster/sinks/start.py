"""Where a sink goes on: at its stored progress, or at the start that a person chose."""

from __future__ import annotations

import msgspec

from pgstream_dagster.config.sinks import SinkConfig
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

    Shape:
        stored: the progress in the lake; `kept`: the one in the target, which is newer unless the
            sink was reset since.
    """
    cursors = [Cursor.from_json(kept) if kept else None, stored]
    cursor = next((c for c in cursors if c and c.generation == request.generation), None)
    if cursor is None:
        return beginning(opened, request.generation, request.start or config.start)
    if cursor.epoch != opened.epoch:
        again = beginning(opened, request.generation, "copy")
        return msgspec.structs.replace(again, is_restarted=True)
    return msgspec.structs.replace(cursor, redriven=())


def beginning(opened: OpenPipeline, generation: int, start: str) -> Cursor:
    """
    The cursor of a sink that has delivered nothing.

    It begins at the oldest copy, so that what landed since comes in the order of its commits.
    """
    watermark = opened.require_watermark()
    points = {r: int(point) for r, (point, _) in opened.copied_relations().items()}
    if start == "now":
        return Cursor(generation, opened.epoch, int(watermark), copies=points)
    if start == "copy":
        return Cursor(generation, opened.epoch, min([int(watermark), *points.values()]))
    position = min(int(Lsn.parse(start)), int(watermark))
    copies = {r: point for r, point in points.items() if point <= position}
    return Cursor(generation, opened.epoch, position, copies=copies)
