"""
How far the typed tables are: all of them at one position, each with its rows, columns and state.

Reads the recorded progress, not the tables: a table that somebody changed by hand looks as before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.tail import Kind, Tail
from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import LOG_FOLDER, entry_name
from pgstream_dagster.errors import LogGone, NoTypedTables
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.tables.assignment import Copied, assigned
from pgstream_dagster.tables.columns import COMMIT_LSN, COMMITTED_AT, EPOCH, ORDINAL, OWN, layout_of
from pgstream_dagster.tables.progress import Entry, Progress, recorded
from pgstream_dagster.tables.relations import copied_relations
from pgstream_dagster.tables.types import delta_type

LOG_COLUMNS = {
    EPOCH: "epoch",
    COMMIT_LSN: "commit_lsn",
    ORDINAL: "ordinal",
    COMMITTED_AT: "committed_at",
}
"""The columns of pgstream that are columns of the log."""


class TableState(StrEnum):
    """What is to be known of a typed table."""

    CURRENT = "current"
    BEHIND = "behind"  # changes of the log are not merged yet
    WAITING = "waiting"  # changes are missing; it waits for the next copy
    HELD = "held"  # changes of its columns wait for an approval
    MISSING = "missing"  # the next merge makes it


@dataclass(frozen=True, slots=True)
class TypedColumnStatus:
    """A column; `source` is its name on the source, `None` if it is one of pgstream."""

    name: str
    type: str
    source: str | None
    in_key: bool = False


@dataclass(frozen=True, slots=True)
class TypedTableStatus:
    """
    One typed table; `table` is its table of the source.

    It has every change up to `position`; that of the pass which last changed it is `changed_at`,
    and `seconds` is what that took. Both positions are `None` before its first merge, and
    `position` is `None` while it waits for a copy.
    """

    name: str
    table: str
    state: TableState
    uri: str
    rows: int = 0
    position: Lsn | None = None
    changed_at: Lsn | None = None
    version: str = ""  # differs when its rows or columns do
    seconds: float = 0.0
    columns: tuple[TypedColumnStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class TypedStatus:
    """
    All typed tables; `position` is that of the last pass, `None` before the first.

    `lag_seconds`: since the log passed `position`; `None`: not known.
    """

    position: Lsn | None
    lag_bytes: int
    lag_seconds: float | None
    tables: tuple[TypedTableStatus, ...]


@named
def typed_status(pipeline: Pipeline) -> TypedStatus:
    """
    The typed tables of the pipeline file, by name. Changes nothing, starts no Spark.

    Raises:
        NotSetUp: `setup` was never run for this pipeline and lake.
        NoTypedTables: the pipeline file has no section `tables`.
        TypedNameTaken: two tables of the source would have one typed table.
    """
    config = pipeline.config.tables
    if config is None:
        raise NoTypedTables(pipeline.name)
    with pipeline.open() as opened:
        progress = recorded(opened).progress
        watermark = opened.require_watermark()
        relations = copied_relations(opened, watermark)
        position = Lsn(progress.position) if progress.position else None
        lag_bytes = max(0, watermark - (position or Lsn(0)))
        return TypedStatus(
            position,
            lag_bytes,
            _lag_seconds(opened, position) if lag_bytes else 0.0,
            tuple(_tables(pipeline.lake, config, relations, progress, watermark)),
        )


def _tables(
    lake: Lake,
    config: TablesConfig,
    relations: Mapping[int, Copied],
    progress: Progress,
    watermark: Lsn,
) -> Iterator[TypedTableStatus]:
    for name, relation_id in sorted(assigned(relations, progress.relations, config).items()):
        entry = progress.tables.get(name)
        columns = _columns(config, relations[relation_id])
        table, place = relations[relation_id].newest.full_name, lake.typed_table(name)
        if entry is None or (entry.relation_id != relation_id and entry.held is None):
            missing = TableState.MISSING
            yield TypedTableStatus(name, table, missing, place, columns=columns)
            continue
        yield TypedTableStatus(
            name,
            table,
            _state(entry, progress, watermark),
            place,
            entry.rows,
            None if entry.has_gap else progress.position_of(name),
            Lsn(entry.changed_at),
            f"{progress.epoch}/{Lsn(entry.changed_at)}/{entry.columns}",
            entry.seconds,
            columns,
        )


def _state(entry: Entry, progress: Progress, watermark: Lsn) -> TableState:
    if entry.has_gap:
        return TableState.WAITING
    if entry.held is not None:
        return TableState.HELD
    return TableState.CURRENT if progress.position >= watermark else TableState.BEHIND


def _columns(config: TablesConfig, copied: Copied) -> tuple[TypedColumnStatus, ...]:
    layout = layout_of(config, copied)
    sources = layout.sources
    columns = [
        TypedColumnStatus(
            column.name,
            delta_type(column.source, column.options).simpleString(),
            sources[number],
            column.name in layout.key,
        )
        for number, column in layout.columns.items()
    ]
    own = [TypedColumnStatus(name, type_.simpleString(), None) for name, type_ in OWN.items()]
    return (*columns, *own)


def _lag_seconds(opened: OpenPipeline, position: Lsn | None) -> float | None:
    """Since the first landing past the position; reads entries of the log, the newest first."""
    if position is None:
        return None
    lake = opened.pipeline.lake
    tail = Tail(lake, opened.pipeline.name, opened.epoch)
    try:
        commits = tail.poll(tail.version_of(position))
    except LogGone:  # it is further behind than the entries of the log go back
        return None
    landed = [commit.version for commit in commits if commit.kind is Kind.LANDING]
    filesystem, folder = uri.filesystem(uri.child(lake.change_log, LOG_FOLDER))
    for version in landed[:1]:
        written_at = filesystem.get_file_info(f"{folder}/{entry_name(version)}").mtime_ns
        return None if written_at is None else max(0.0, time.time() - written_at / 1e9)
    return None
