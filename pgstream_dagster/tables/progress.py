"""How far the typed tables of a pipeline are, as their own small table in the lake has it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

import msgspec

from pgstream_dagster.changelog.sink_log import Kind, Overtaken, SinkLog, StateRow
from pgstream_dagster.errors import MergeOvertaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline


class Held(msgspec.Struct, frozen=True):
    """
    Changes of a typed table's columns that wait for an approval.

    `table` is the table of the source as it is called now. `versions` identifies what an approval
    is for. The typed table has all changes up to `position`.
    """

    table: str
    versions: str
    position: int
    changes: tuple[str, ...]


class Entry(msgspec.Struct, frozen=True):
    """
    What a typed table had at the end of the last pass, so that most passes need not open it.

    `columns` is a digest of its columns. `has_gap`: changes are missing after its rows, and it
    waits for the next copy. `table` is its table of the source, `changed_at` the position of the
    pass that last changed it, which took `seconds` for it. `versions` identifies the versions of
    the relation that are applied to it; empty if an earlier release has made it. `held`: later ones
    wait for an approval. `version` is that of the Delta table; -1: not known.
    """

    relation_id: int
    copy: int
    columns: str
    rows: int
    has_gap: bool = False
    table: str = ""
    changed_at: int = 0
    seconds: float = 0.0
    versions: str = ""
    held: Held | None = None
    version: int = -1


class Progress(msgspec.Struct, frozen=True):
    """
    Every table has all changes of the epoch up to `position`, or up to a gap before it.

    A table that is held has those up to a position of its own.
    """

    epoch: int = 0
    position: int = 0
    tables: dict[str, Entry] = {}

    @property
    def relations(self) -> dict[str, int]:
        """The relation of each table."""
        return {name: entry.relation_id for name, entry in self.tables.items()}

    def position_of(self, name: str) -> Lsn:
        """The position up to which a typed table has all changes."""
        entry = self.tables.get(name)
        held = None if entry is None else entry.held
        return Lsn(self.position if held is None else held.position)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest progress, and when it was recorded; `None`: never."""

    progress: Progress
    at: datetime | None


def recorded(opened: OpenPipeline) -> Recorded:
    """The newest progress of the pipeline's typed tables in its epoch."""
    pipeline = opened.pipeline
    log = SinkLog(pipeline.lake, opened.gateway, uri=pipeline.lake.typed_tables)
    with closing(log):
        own = ProgressLog(log, pipeline.name)
        return Recorded(own.read(opened.epoch), own.recorded_at)


class ProgressLog:
    """The progress of one pipeline; each is a compare-and-set on the one that was read."""

    def __init__(self, log: SinkLog, pipeline: str) -> None:
        self._log, self._pipeline = log, pipeline
        self._row = StateRow()

    @property
    def recorded_at(self) -> datetime | None:
        """When the progress that was read was recorded."""
        return self._row.recorded_at

    def read(self, epoch: int) -> Progress:
        """The newest progress of an epoch; nothing of another one counts."""
        self._row = self._log.get(self._pipeline, Kind.PROGRESS)
        if not self._row.state:
            return Progress(epoch)
        progress = msgspec.json.decode(self._row.state, type=Progress)
        return progress if progress.epoch == epoch else Progress(epoch)

    def save(self, epoch: int, position: Lsn, tables: Mapping[str, Entry]) -> None:
        """
        Record a pass, durable when this returns.

        Raises:
            MergeOvertaken: another process has recorded one since `read`.
        """
        progress = Progress(epoch, int(position), dict(tables))
        state = msgspec.json.encode(progress).decode()
        try:
            self._row = self._log.put(self._pipeline, Kind.PROGRESS, state, self._row)
        except Overtaken as error:
            raise MergeOvertaken(self._log.uri) from error
