"""
What a target holds at one moment, and how far its sink was then, to compare it with the log.

The cursor is written in the transaction of the changes, so one snapshot of the target has both: the
sink may continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from pgstream_dagster.errors import NotComparable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.schema.versions import Versions
from pgstream_dagster.sinks.postgres import progress
from pgstream_dagster.sinks.postgres.progress import Recorded, Relation
from pgstream_dagster.sinks.postgres.session import connected, named
from pgstream_dagster.sinks.postgres.tables import read_table
from pgstream_dagster.sinks.postgres.target import Target
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.publication import PublishedTable
from pgstream_dagster.source.query import query
from pgstream_dagster.source.snapshot import Snapshot
from pgstream_dagster.sql import statement


@dataclass(frozen=True, slots=True)
class TargetSnapshot:
    """A snapshot of a target, the cursor it shows, and the version that each of its tables has."""

    snapshot: Snapshot
    cursor: Cursor
    versions: Mapping[Relation, Recorded]

    @property
    def end(self) -> Lsn:
        """The target has every change of its tables that committed before this position."""
        return self.cursor.end


@contextmanager
def taken(target: Target) -> Generator[TargetSnapshot]:
    """
    A snapshot of the target, importable until the block ends.

    Raises:
        SinkUnreachable, SinkRefused
        NotComparable: the sink has committed nothing to this target yet.
    """
    with closing(connected(target, "pgstream reconcile")) as session, named(target, session):
        session.execute("begin isolation level repeatable read, read only")
        [(has_progress,)] = session.execute(statement("sink/progress_exists")).fetchall()
        kept = progress.cursor(target, session) if has_progress else None
        if kept is None:
            remedy = f"run 'pgstream sink run {target.sink}' first"
            raise NotComparable(target.sink, "its target has received nothing", remedy)
        [(name, taken_at_us)] = query(session, "source/snapshot_export")
        cursor = Cursor.from_json(kept)
        yield TargetSnapshot(
            Snapshot(name, Lsn(cursor.watermark), taken_at_us),
            cursor,
            progress.versions(target, session),
        )


def table_of(session: Session, namespace: str, name: str) -> PublishedTable | None:
    """A table of the target as a scan reads it; `None` if it does not exist."""
    table = read_table(session, namespace, name)
    if table is None:
        return None
    return PublishedTable(
        relation_id=table.table_oid,
        namespace=namespace,
        name=name,
        kind=table.kind,
        columns=tuple(table.places),
        attnums=(),
        newest_attnum=0,
        row_filter=None,
        members={},
        estimated_rows=0,
        pages=0,
        versions=Versions(),
    )
