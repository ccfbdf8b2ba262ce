"""
Typed tables and histories in a metastore: each by a name of its own, after the pass that made it.

What is registered is recorded in the lake, so a pass that changed nothing does not ask the
metastore; a table that a pass has changed is looked up, and registered again if it is gone. What
could not be done is not recorded: the next pass tries again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Final

import msgspec

from pgstream_dagster.changelog.sink_log import Kind, Overtaken, SinkLog
from pgstream_dagster.config.metastore import MetastoreConfig, is_address
from pgstream_dagster.delta.metastore import Metastore, connected
from pgstream_dagster.errors import (
    InvalidSetting,
    MergeOvertaken,
    MetastoreNameTaken,
    MetastoreRefused,
    MetastoreUnavailable,
)
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.settings import required
from pgstream_dagster.tables.history.merge import progress_of
from pgstream_dagster.tables.passes import Merged
from pgstream_dagster.tables.progress import ProgressLog

logger: Final = logging.getLogger(__name__)


class Place(msgspec.Struct, frozen=True):
    """Where a metastore has a Delta table: its name there, and the URI."""

    name: str
    location: str


class Registered(msgspec.Struct, frozen=True):
    """What a database of a metastore has, by typed table or history."""

    uri: str = ""
    database: str = ""
    tables: dict[str, Place] = {}


def metastore_address(pipeline: Pipeline) -> str | None:
    """
    The address of the metastore; `None`: the pipeline has none.

    Raises:
        MissingSetting, InvalidSetting: of the variable that the file names.
    """
    config = None if pipeline.config.tables is None else pipeline.config.tables.metastore
    if config is None or config.uri_from is None:
        return None if config is None else config.uri
    address = required(pipeline.environment, config.uri_from, "the address of the metastore")
    if not is_address(address):
        raise InvalidSetting(config.uri_from, "", "thrift://host:port")
    return address


def register_tables(opened: OpenPipeline, merged: Merged, address: str) -> list[MetastoreNameTaken]:
    """
    Register the tables that the metastore lacks, of those that are there after a pass.

    Returns those that cannot have their names; all others are registered.

    Runs in the turn of that pass. Logs a warning if the metastore is not available, and for each
    table that it refuses.
    """
    pipeline = opened.pipeline
    config = None if pipeline.config.tables is None else pipeline.config.tables.metastore
    if config is None or merged.is_stopped:
        return []
    with closing(SinkLog(pipeline.lake, opened.gateway, uri=pipeline.lake.typed_tables)) as log:
        work = _Registration(opened, config, address, log)
        return work.run({table.name for table in merged.tables})


class _Registration:
    """The tables of one pipeline, and what the metastore was given of them."""

    def __init__(
        self, opened: OpenPipeline, config: MetastoreConfig, address: str, log: SinkLog
    ) -> None:
        self._opened, self._config, self._address, self._log = opened, config, address, log
        self._key: Final = f"{opened.pipeline.name}/metastore"
        self._row = log.get(self._key, Kind.PROGRESS)

    def run(self, changed: Collection[str]) -> list[MetastoreNameTaken]:
        """Register what is due, and record it; the tables that cannot have their names."""
        places, before = self._places(), self._recorded()
        kept = {name: place for name, place in before.items() if places.get(name) == place}
        due = {n: place for n, place in places.items() if n in changed or n not in kept}
        taken = _clashes(due, places, self._config.database)
        refused = {error.table for error in taken}
        done = {name: place for name, place in kept.items() if name not in due}
        remaining = {name: place for name, place in due.items() if name not in refused}
        if remaining:
            try:
                with connected(
                    self._opened.gateway, self._address, self._config.database
                ) as metastore:
                    taken += _registered(metastore, remaining, done)
            except MetastoreUnavailable as error:
                logger.warning("%s", error)
        self._record(done, before)
        return taken

    def _places(self) -> dict[str, Place]:
        """Where the metastore shall have each table that there is."""
        opened, lake = self._opened, self._opened.pipeline.lake
        logs = (
            ProgressLog(self._log, opened.pipeline.name),
            progress_of(self._log, opened.pipeline.name),
        )
        names = sorted(name for log in logs for name in log.read(opened.epoch).tables)
        return {name: Place(self._config.name_of(name), lake.typed_table(name)) for name in names}

    def _recorded(self) -> Mapping[str, Place]:
        """What this database of this metastore was given."""
        if not self._row.state:
            return {}
        state = msgspec.json.decode(self._row.state, type=Registered)
        is_same = (state.uri, state.database) == (self._address, self._config.database)
        return state.tables if is_same else {}

    def _record(self, tables: dict[str, Place], before: Mapping[str, Place]) -> None:
        if tables == before:
            return
        state = msgspec.json.encode(Registered(self._address, self._config.database, tables))
        try:
            self._log.put(self._key, Kind.PROGRESS, state.decode(), self._row)
        except Overtaken as error:
            raise MergeOvertaken(self._log.uri) from error


def _clashes(
    due: Mapping[str, Place], places: Mapping[str, Place], database: str
) -> list[MetastoreNameTaken]:
    """Of the tables that are due, those whose name another typed table would have, too."""
    counts = Counter(place.name for place in places.values())
    return [
        MetastoreNameTaken(f"{database}.{place.name}", table, f"typed table {other!r}, too")
        for table, place in due.items()
        if counts[place.name] > 1
        for other in [next(n for n, p in places.items() if p.name == place.name and n != table)]
    ]


def _registered(
    metastore: Metastore, due: Mapping[str, Place], done: dict[str, Place]
) -> list[MetastoreNameTaken]:
    """Register tables, adding each to `done`; those whose names are taken there. Logs refusals."""
    taken = list[MetastoreNameTaken]()
    for table, place in due.items():
        try:
            metastore.register(place.name, table, place.location)
        except MetastoreNameTaken as error:
            taken.append(error)
        except MetastoreRefused as error:
            logger.warning("%s", error)
        else:
            done[table] = place
    return taken
