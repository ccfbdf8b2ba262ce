"""The relations of a pipeline's log, as typed tables need them."""

from __future__ import annotations

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.schema.table import TableSchema, by_id, named_at
from pgstream_dagster.tables.assignment import Copied


def copied_relations(opened: OpenPipeline, position: Lsn) -> dict[int, Copied]:
    """The relations that were copied at or below a position, with their versions by then."""
    points = opened.copies_at(position)
    history = [
        (begins, version)
        for begins, version in opened.schema_log.history(opened.epoch)
        for point in [points.get(version.relation_id)]
        if point is not None and (begins < position or begins == point)
    ]
    versions: dict[int, list[TableSchema]] = {}
    since: dict[int, list[Lsn]] = {}
    for begins, version in history:
        versions.setdefault(version.relation_id, []).append(version)
        since.setdefault(version.relation_id, []).append(begins)
    places = named_at(version for _, version in history)
    dropped = opened.schema_log.dropped(opened.epoch, position)
    return {
        r: Copied(
            points[r],
            list(by_id(of_relation).values()),
            of_relation,
            places[r],
            is_dropped=r in dropped,
            since=since[r],
        )
        for r, of_relation in versions.items()
    }
