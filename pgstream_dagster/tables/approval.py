"""
Changes of columns that wait for an approval: what waits, and approving it.

What waits is in the progress of a pass, which the pass writes; what is approved is a row of its
own, which people write. A pass applies what is approved; so an approval is one commit, and one that
is made during a pass counts from the next.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import msgspec

from pgstream_dagster.changelog.sink_log import Kind, Overtaken, SinkLog
from pgstream_dagster.errors import ApprovalOutdated, NothingHeld, NoTypedTables
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.tables.progress import Entry, ProgressLog


@dataclass(frozen=True, slots=True)
class HeldTable:
    """
    A typed table whose new columns wait for an approval.

    `table` is its table of the source. `versions` identifies the changes: an approval holds for
    these and for no later ones. The rows are those of the source at `position`. `is_approved`: the
    next merge applies the changes.
    """

    name: str
    table: str
    versions: str
    position: Lsn
    changes: tuple[str, ...]
    is_approved: bool = False


class Approved(msgspec.Struct, frozen=True):
    """Typed table -> the digest of the versions that are approved for it."""

    tables: dict[str, str] = {}


class Approvals:
    """What people have approved in one pipeline."""

    def __init__(self, log: SinkLog, pipeline: str) -> None:
        self._log, self._pipeline = log, pipeline

    def read(self) -> Mapping[str, str]:
        """Typed table -> the digest of the versions that are approved for it."""
        return _decoded(self._log.get(self._pipeline, Kind.REQUEST).state)

    def add(self, versions: Mapping[str, str], waiting: Collection[str]) -> None:
        """
        Approve versions, durable when this returns; of the others, forget what no longer waits.

        No-op if they are approved already. Of two processes that do so at once, each has its own.
        """
        while True:
            row = self._log.get(self._pipeline, Kind.REQUEST)
            before = _decoded(row.state)
            kept = {name: digest for name, digest in before.items() if name in waiting}
            after = {**kept, **versions}
            if after.items() <= before.items():
                return
            state = msgspec.json.encode(Approved(after)).decode()
            reach("tables.approving")
            try:
                self._log.put(self._pipeline, Kind.REQUEST, state, row)
            except Overtaken:
                continue
            reach("tables.approved")
            return


def held_in(entries: Mapping[str, Entry], approved: Mapping[str, str]) -> list[HeldTable]:
    """The tables that a pass has held, by name."""
    return [
        HeldTable(
            name,
            held.table,
            held.versions,
            Lsn(held.position),
            held.changes,
            is_approved=approved.get(name) == held.versions,
        )
        for name, entry in sorted(entries.items())
        if (held := entry.held) is not None
    ]


@named
def held_tables(pipeline: Pipeline) -> list[HeldTable]:
    """
    The typed tables whose changes of columns wait, as the last pass saw them; none is changed.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NoTypedTables: the pipeline file has no section `tables`.
    """
    with _opened(pipeline) as (opened, log):
        return held_of(log, pipeline.name, opened.epoch)


def held_of(log: SinkLog, pipeline: str, epoch: int) -> list[HeldTable]:
    """As `held_tables`, with what has the progress."""
    entries = ProgressLog(log, pipeline).read(epoch).tables
    return held_in(entries, Approvals(log, pipeline).read())


@named
def approve_tables(
    pipeline: Pipeline, tables: Collection[str] = (), *, versions: str | None = None
) -> list[HeldTable]:
    """
    Approve the changes that the last pass has held; the next one applies them.

    Approves what the result has, and nothing that comes later: a further change of such a table is
    held again, with all of them. Again, and by several processes at once, it is the same.

    Shape:
        tables: tables of the source, as namespace.name; without any, all that wait.
        versions: with one table, refuse if what waits is not this.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NoTypedTables: the pipeline file has no section `tables`.
        NothingHeld: no change of one of the tables waits.
        ApprovalOutdated: the table has changed since; nothing is approved.
    """
    with _opened(pipeline) as (opened, log):
        waiting = held_of(log, pipeline.name, opened.epoch)
        chosen = _chosen(waiting, tables)
        for table in chosen:
            if versions not in (None, table.versions):
                raise ApprovalOutdated(table.table, str(versions), table.versions)
        digests = {table.name: table.versions for table in chosen}
        Approvals(log, pipeline.name).add(digests, [table.name for table in waiting])
        return [replace(table, is_approved=True) for table in chosen]


@contextmanager
def _opened(pipeline: Pipeline) -> Generator[tuple[OpenPipeline, SinkLog]]:
    if pipeline.config.tables is None:
        raise NoTypedTables(pipeline.name)
    with (
        pipeline.open() as opened,
        closing(SinkLog(pipeline.lake, opened.gateway, uri=pipeline.lake.typed_tables)) as log,
    ):
        yield opened, log


def _chosen(waiting: Collection[HeldTable], tables: Collection[str]) -> list[HeldTable]:
    by_table = {table.table: table for table in waiting}
    for table in tables:
        if canonical(table) not in by_table:
            raise NothingHeld(table, sorted(by_table))
    names = set(map(canonical, tables))
    return [table for table in waiting if not names or table.table in names]


def _decoded(state: str) -> dict[str, str]:
    return msgspec.json.decode(state, type=Approved).tables if state else {}
