"""
One typed table: what it says of itself, and the commits that change it.

What the rows are of (pipeline, epoch, relation, copy) is a property of the table, committed with
them. So is the position, at first; each later commit of rows carries it as a transaction id, whose
app is named by the property. So a commit that was made is never made again.

On a local file system every statement here runs while the commit lock is held, by the caller.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.delta import fsync, uri
from pgstream_dagster.delta.commit_lock import LOCK_NAME, CommitLock
from pgstream_dagster.delta.entries import LOG_FOLDER
from pgstream_dagster.delta.jvm import Java
from pgstream_dagster.delta.kernel import kernel
from pgstream_dagster.errors import (
    MergeOvertaken,
    TableFeaturesKept,
    TableMissing,
    TypedRebuildDiffers,
)
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.tables.building import beside, fingerprint, swap
from pgstream_dagster.tables.columns import Layout, comment, quoted
from pgstream_dagster.tables.direct import Change, change, row_count
from pgstream_dagster.tables.evolution import features_of
from pgstream_dagster.tables.features import ALL, NONE, Features
from pgstream_dagster.tables.increment import IS_THERE, Size
from pgstream_dagster.tables.locate import Finder, can_locate
from pgstream_dagster.tables.physical import logical, physical
from pgstream_dagster.tables.types import RESCUED

log: Final = logging.getLogger(__name__)

BUILD: Final = "pgstream.build"
"""The table property with what the rows are of."""

PROPERTIES: Final = {"delta.checkpointInterval": "20"}

_REMOVING: Final = "_removing"
"""A file that is in a table's folder while the rest of it is removed: what is left is no table."""

COMPRESSION: Final = 4
"""How many times larger the values of a file are in memory, of texts that compress well."""

_APP: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"


class Build(msgspec.Struct, frozen=True):
    """What the rows of a table are of; `app` is that of the positions after `position`."""

    pipeline: str
    epoch: int
    relation_id: int
    copy: int
    position: int
    app: str

    @classmethod
    def new(cls, pipeline: str, epoch: int, relation_id: int, copy: Lsn, position: Lsn) -> Build:
        """One that no table has yet."""
        app = f"{pipeline}/{epoch}/table/{relation_id}/{secrets.token_hex(8)}"
        return cls(pipeline, epoch, relation_id, int(copy), int(position), app)

    def is_of(self, pipeline: str, epoch: int, relation_id: int, copy: Lsn) -> bool:
        """Whether later changes of this relation's copy may be merged into it."""
        return (self.pipeline, self.epoch, self.relation_id, self.copy) == (
            pipeline,
            epoch,
            relation_id,
            copy,
        )


@dataclass(frozen=True, slots=True)
class State:
    """A table that is there, and the position of its rows."""

    build: Build
    position: Lsn
    features: Features
    columns: Sequence[T.StructField] = ()
    clustering: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Affected:
    """How many rows a merge has written and removed; `net` is how many more there are."""

    net: int


@dataclass(frozen=True, slots=True)
class Direct:
    """A version of a table whose rows Arrow can find and write."""

    snapshot: Java
    fields: Mapping[str, pa.Field]  # column name -> field in the files
    adds: Sequence[Mapping[str, Any]]

    def bytes_of(self, size: Size) -> float:
        """The bytes of changed rows, with the values that they take from rows of the table."""
        total = sum(add["size"] for add in self.adds)
        row_bytes = total / max(1, row_count(self.adds) or 0)
        return size.text_bytes + size.referring_rows * row_bytes * COMPRESSION


class Target:
    """The typed table at a URI; one thread uses it."""

    def __init__(self, table: str, spark: SparkSession, gateway: JavaGateway) -> None:
        self.uri = table
        self._spark, self._gateway = spark, gateway
        self._folder = uri.local(table)

    @contextmanager
    def held(self) -> Generator[None]:
        """Wait for the commit lock of the table, which need not exist, and hold it."""
        log = None if self._folder is None else self._folder / LOG_FOLDER
        if log is not None:
            fsync.make_folder(log)
        with CommitLock(self._gateway, log).held():
            yield

    def state(self) -> State | None:
        """What the table says of itself; `None` if there is none, or it is not ours."""
        delta = kernel(self._gateway)
        if self._is_being_removed:
            return None
        try:
            snapshot = delta.load(self.uri)
        except TableMissing:
            return None
        properties = delta.properties(snapshot)
        text = properties.get(BUILD)
        if text is None:
            return None
        build = msgspec.json.decode(text, type=Build)
        merged = delta.transaction_id(snapshot, build.app)
        columns = T.StructType.fromJson(delta.schema(snapshot)).fields
        position = Lsn(max(build.position, merged or 0))
        clustering = logical(columns, delta.clustering(snapshot))
        return State(build, position, Features.present(properties), columns, clustering)

    def rows(self) -> DataFrame:
        """All rows of the newest version."""
        return self._spark.read.format("delta").load(self.uri)

    def has_rescued(self, names: Sequence[str]) -> bool:
        """Whether any row has a text under one of these names in `_rescued`; a job, if any."""
        if not names:
            return False
        texts = [F.map_contains_key(RESCUED, F.lit(name)) for name in names]
        return not self.rows().where(F.greatest(*texts, *texts)).isEmpty()

    def evolve(self, statements: Sequence[str]) -> None:
        """Change the columns, a commit for each statement."""
        for statement in statements:
            with self._committing():
                self._spark.sql(f"ALTER TABLE {self.name} {statement}")
            reach("tables.evolving")

    def rewrite(self, rows: DataFrame, layout: Layout, state: State) -> None:
        """Replace columns and rows in one commit, by rows of the same position."""
        build = msgspec.structs.replace(state.build, position=int(state.position))
        self._replace(rows, layout, build, state.features)
        reach("tables.rewritten")

    def rebuild(
        self,
        rows: DataFrame,
        layout: Layout,
        build: Build,
        features: Features = ALL,
        *,
        is_verified: bool = False,
    ) -> None:
        """
        Replace columns and rows in one commit; a reader of an older version can go on.

        But if the table has a feature that it shall not have, it is removed before: no commit could
        take it back for the readers that lack it.

        Shape:
            rows: not read from the table itself.
            is_verified: make `rows` twice, and compare them with what was written before that
                commit; on a local file system.

        Raises:
            TypedRebuildDiffers: they are not the same; the table is as it was.
        """
        if is_verified and self._folder is not None and not self._is_being_removed:
            self._replace_verified(self._folder, rows, layout, build, features)
        else:
            self._remove_if_wider(features)
            self._replace(rows, layout, build, features)
        reach("tables.rebuilt")

    def _replace_verified(
        self, folder: Path, rows: DataFrame, layout: Layout, build: Build, features: Features
    ) -> None:
        is_wider = bool(self._features().without(features))
        with beside(folder, is_new=is_wider) as place:
            building = Target(uri.absolute(place), self._spark, self._gateway)
            building._replace(rows, layout, build, features)
            reach("tables.built")
            names = [quoted(name) for name in layout.names]
            expected = fingerprint(rows.select(names))
            written = fingerprint(building.rows().select(names))
            if written != expected:
                raise TypedRebuildDiffers(self.uri, expected.rows, written.rows)
            if is_wider:
                self._remove_if_wider(features)
            try:
                swap(place, folder, building.version())
            except FileExistsError as error:
                raise MergeOvertaken(self.uri) from error

    def _replace(self, rows: DataFrame, layout: Layout, build: Build, features: Features) -> None:
        described = [
            F.col(quoted(column.name)).alias(column.name, metadata={"comment": comment(attnum)})
            for attnum, column in layout.columns.items()
        ]
        own = [F.col(name) for name in layout.names[len(described) :]]
        # Delta turns them on by itself for a new table, and not where it replaces one.
        of_types = {f"delta.feature.{name}": "supported" for name in _features(layout)}
        properties = {
            **PROPERTIES,
            **features.properties,
            **of_types,
            BUILD: msgspec.json.encode(build).decode(),
        }
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        with self._viewed(rows.select(*described, *own)) as view, self._committing():
            replacing = f"CREATE OR REPLACE TABLE {self.name} USING delta"
            chosen = f"SELECT * FROM {view}"  # noqa: S608  a name of ours
            self._spark.sql(f"{replacing} TBLPROPERTIES ({listed}) AS {chosen}")

    def append(self, rows: DataFrame, layout: Layout, app: str, position: Lsn) -> None:
        """Add rows, with the position in the same commit; no-op if the table is there already."""
        with self._committing():
            (
                rows.select(*map(quoted, layout.names))
                .write.format("delta")
                .mode("append")
                .option("txnAppId", app)
                .option("txnVersion", str(int(position)))
                .save(self.uri)
            )
            reach("tables.merged")

    def merge(self, rows: DataFrame, layout: Layout, app: str, position: Lsn) -> Affected | None:
        """
        Make the row of each key of `rows` what these say, with the position in the same commit.

        `None`, and nothing is done, if the table is at the position already.

        Shape:
            rows: IS_THERE, and the columns of the table; of a key without a row only its columns.
        """
        with self._viewed(rows) as view, self._committing(), self._as_transaction(app, position):
            done = self._spark.sql(_merge(self.name, view, layout)).collect()
            reach("tables.merged")
        if not done:
            return None
        [(_, _, deleted, inserted)] = map(tuple, done)
        return Affected(inserted - deleted)

    def direct(self, layout: Layout) -> Direct | None:
        """
        The newest version, for a change without a Spark job.

        `None`: it has columns that only Spark writes, or a key that only Spark compares, or no
        deletion vectors.
        """
        delta = kernel(self._gateway)
        snapshot = delta.load(self.uri)
        fields = physical(delta.schema(snapshot))
        has_vectors = Features.present(delta.properties(snapshot)).deletion_vectors
        if fields is None or not has_vectors or not can_locate(fields, layout.key):
            return None
        chosen = {name: fields[name] for name in layout.names}
        return Direct(snapshot, chosen, delta.adds(snapshot))

    def change(
        self, rows: pa.Table, keys: Finder | None, on: Direct, app: str, position: Lsn
    ) -> int | None:
        """
        As `merge`, or as `append` without `keys`; the number of rows that the table then has.

        `None`, and nothing is done, if the table is at the position already.

        Shape:
            rows: the columns of the table, only of rows that there are.

        Raises:
            MergeOvertaken: `on` is not the newest version any more.
        """
        merged = kernel(self._gateway).transaction_id(on.snapshot, app)
        if merged is not None and merged >= position:
            return None
        planned = Change(rows, on.fields, keys, {app: int(position)}, on.adds)
        count = change(self._gateway, self.uri, on.snapshot, planned)
        reach("tables.merged")
        return count

    def version(self) -> int:
        """The newest version."""
        return int(kernel(self._gateway).load(self.uri).getVersion())

    def count(self) -> int:
        """How many rows the newest version has; a job where files lack statistics."""
        delta = kernel(self._gateway)
        rows = row_count(delta.adds(delta.load(self.uri)))
        return self.rows().count() if rows is None else rows

    def _remove_if_wider(self, features: Features) -> None:
        """Remove the table if it has a feature too many, or if that was interrupted before."""
        if not self._is_being_removed:
            names = self._features().without(features)
            if not names:
                return
            if self._folder is None:
                raise TableFeaturesKept(self.uri, names)
            log.warning("%s is removed and made again without %s", self.uri, " and ".join(names))
            (self._folder / _REMOVING).touch()
            fsync.sync_files([self._folder / _REMOVING])
        assert self._folder is not None
        reach("tables.removing")
        _remove_all_but(self._folder, [_REMOVING, LOG_FOLDER, LOCK_NAME])
        # Spark would go on from the versions that it has seen.
        cast("Any", self._gateway.jvm).org.apache.spark.sql.delta.DeltaLog.clearCache()
        (self._folder / _REMOVING).unlink()
        fsync.sync(self._folder)

    def _features(self) -> Features:
        """Those of the table; none if it is not there."""
        delta = kernel(self._gateway)
        try:
            return Features.present(delta.properties(delta.load(self.uri)))
        except TableMissing:
            return NONE

    @property
    def _is_being_removed(self) -> bool:
        return self._folder is not None and (self._folder / _REMOVING).exists()

    @property
    def name(self) -> str:
        """What a statement calls the table."""
        return f"delta.{quoted(self.uri)}"

    @contextmanager
    def _viewed(self, rows: DataFrame) -> Generator[str]:
        """A name by which the session of the table finds rows of another one."""
        view = f"pgstream_{secrets.token_hex(8)}"
        rows.createGlobalTempView(view)
        try:
            yield f"global_temp.{view}"
        finally:
            self._spark.catalog.dropGlobalTempView(view)

    @contextmanager
    def _as_transaction(self, app: str, position: Lsn) -> Generator[None]:
        self._spark.conf.set(_APP, app)
        self._spark.conf.set(_VERSION, str(int(position)))
        try:
            yield
        finally:
            self._spark.conf.unset(_APP)
            self._spark.conf.unset(_VERSION)

    @contextmanager
    def _committing(self) -> Generator[None]:
        """Name a conflict with another process; afterwards what was written is on disk."""
        began_at = time.time()
        try:
            yield
        except (Py4JJavaError, PySparkException) as error:
            if _is_conflict(error):
                raise MergeOvertaken(self.uri) from error
            raise
        if self._folder is not None:
            fsync.sync_files(_written_since(self._folder, began_at - 1))


def _features(layout: Layout) -> list[str]:
    return sorted(features_of(layout.types.values()))


def _merge(table: str, view: str, layout: Layout) -> str:
    names = [quoted(name) for name in layout.names]
    same = [f"t.{quoted(name)} <=> s.{quoted(name)}" for name in layout.key]
    same += [
        f"try_element_at(t.{RESCUED}, {_literal(name)}) <=>"
        f" try_element_at(s.{RESCUED}, {_literal(name)})"
        for name in layout.rescuable(layout.key)
    ]
    clauses = [
        f"MERGE INTO {table} AS t USING {view} AS s ON {' AND '.join(same)}",
        f"WHEN MATCHED AND NOT s.{IS_THERE} THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)}",
        f"WHEN NOT MATCHED AND s.{IS_THERE} THEN INSERT ({', '.join(names)})",
        f"VALUES ({', '.join(f's.{name}' for name in names)})",
    ]
    return " ".join(clauses)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _is_conflict(error: Py4JJavaError | PySparkException) -> bool:
    if isinstance(error, Py4JJavaError):
        name = str(cast("Any", error.java_exception).getClass().getSimpleName())
        return name.startswith("Concurrent") or name.endswith("ChangedException")
    return (error.getCondition() or "").startswith("DELTA_CONCURRENT")


def _remove_all_but(folder: Path, keep: Collection[str]) -> None:
    """Remove what is in a folder and its log, but for these names; durable when it returns."""
    for parent in (folder, folder / LOG_FOLDER):
        for path in parent.iterdir():
            if path.name not in keep:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        fsync.sync(parent)


def _written_since(folder: Path, at: float) -> list[Path]:
    """The files in a table's folder that were written since a time."""
    paths = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    written = list[Path]()
    for path in paths:
        with suppress(FileNotFoundError):  # removed by a VACUUM, or a temporary file
            if path.stat().st_mtime >= at:
                written.append(path)
    return written
