"""
Delta Kernel over py4j: snapshots, commits without retries, the list of a table's files.

Uses the public API of Kernel, except for two helpers that it does not offer otherwise (marked).
Every call crosses to the JVM (about 0.1 ms), so classes are looked up once and lists of files go
through a local file, never row by row. No locks, no syncs and no decisions: see `delta_table`.

Source:
    https://docs.delta.io/latest/delta-kernel-java.html
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import pyarrow as pa
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import AddedFile, added_file, engine_info
from pgstream_dagster.delta.jvm import Java
from pgstream_dagster.delta.parquet import DataFile
from pgstream_dagster.delta.statistics import ALL_ROWS, Within, may_have
from pgstream_dagster.errors import CommitFailed, TableMissing

SAFE_IN_NAMES: Final = "/=-._~"
"""In a file's name in the log, which is a relative URI; everything else is percent-encoded."""


CONFLICTS: Final = (
    "TableAlreadyExistsException",
    "MaxCommitRetryLimitReachedException",
    "ConcurrentWriteException",
)
"""Kernel's exceptions for a version that another commit has taken."""


LISTED_AT_ONCE: Final = 1_000
"""Files in the list of a table, at least; each part goes through a file."""

LOOKED_AT: Final = 10_000
"""Files of a table, at most, to find a few among them; Spark's Delta looks at more by a job."""

CLUSTERING: Final = "delta.clustering"
"""The domain of a table's metadata with its clustering columns."""

NO_IDS: Final[Mapping[str, int]] = {}


class Conflict(Exception):
    """Another commit has taken the version; the caller loads the table again and retries."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that is in the log; `snapshot` is `None` when it must be loaded again."""

    version: int
    snapshot: Java | None
    post_commit_hooks: list[tuple[str, Java]]  # kind and hook


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The actions of a rewrite, in the JVM; may be committed again after a conflict."""

    actions: int
    rows: Java


@lru_cache(maxsize=1)
def kernel(gateway: JavaGateway) -> Kernel:
    """The one of this JVM: an engine reads Hadoop's configuration, which takes 10 ms."""
    return Kernel(gateway)


class Kernel:
    """The classes and the engine of one JVM. Threads may share it."""

    def __init__(self, gateway: JavaGateway) -> None:
        jvm = cast("Java", gateway.jvm)
        delta = jvm.io.delta.kernel
        spark_conf = jvm.org.apache.spark.SparkConf()
        self.hadoop: Java = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(
            spark_conf
        )
        self.engine: Java = delta.defaults.engine.DefaultEngine.create(self.hadoop)
        self._tables = delta.TableManager
        self._transaction = delta.Transaction
        self._write = delta.Operation.WRITE
        self._manual = delta.Operation.MANUAL_UPDATE
        self._status = delta.utils.DataFileStatus
        self._file_status = delta.utils.FileStatus
        self._batch = delta.data.FilteredColumnarBatch
        self._statistics = delta.statistics.DataFileStatistics
        self._rows = delta.utils.CloseableIterable
        self._column = delta.expressions.Column
        self._layout = delta.transaction.DataLayoutSpec
        self._types = delta.types
        self._list, self._map = jvm.java.util.ArrayList, jvm.java.util.HashMap
        self._nothing = jvm.java.util.Optional.empty()
        self._no_partition = self._map()
        self._utils = getattr(delta.internal.util, "Utils")  # noqa: B009  internal; "Utils" is also py4j's
        self._action = delta.internal.actions.SingleAction  # internal

    def load(self, table: str) -> Java:
        """
        The newest snapshot.

        Raises:
            TableMissing: there is no Delta table.
        """
        try:
            return self._tables.loadSnapshot(table).build(self.engine)
        except Py4JJavaError as error:
            if class_name(error) == "TableNotFoundException":
                raise TableMissing(table) from error
            raise

    def create(
        self,
        table: str,
        columns: pa.Schema,
        cluster_by: Sequence[str],
        properties: Mapping[str, str],
    ) -> Commit:
        """
        Create an empty table.

        Raises:
            Conflict: it exists.
        """
        settings, clustering = self._map(), self._list()
        for name, value in properties.items():
            settings.put(name, value)
        for name in cluster_by:
            clustering.add(self._column(name))
        builder = self._tables.buildCreateTableTransaction(
            table, self._struct(columns), engine_info(0)
        ).withTableProperties(settings)
        if cluster_by:
            builder = builder.withDataLayoutSpec(self._layout.clustered(clustering))
        with _named_failures(table):
            return self._commit(builder.build(self.engine), self._rows.emptyIterable(), -1)

    def append(
        self,
        table: str,
        snapshot: Java,
        files: Sequence[DataFile],
        writer: str,
        transaction_id: tuple[str, int] | None = None,
        more_ids: Mapping[str, int] = NO_IDS,
    ) -> Commit:
        """
        Commit `files` on top of `snapshot`, with transaction ids, or not at all.

        `writer` identifies the commit as in `engine_info`. Kernel's builder takes one id, which it
        also uses to detect conflicts; `more_ids` are added as the actions they are.

        Raises:
            Conflict: `snapshot` is not the newest version any more.
            CommitFailed: anything else; the commit may or may not exist.
        """
        builder = snapshot.buildUpdateTableTransaction(
            engine_info(len(files) + (transaction_id is not None) + len(more_ids), writer),
            self._write,
        ).withMaxRetries(0)
        if transaction_id is not None:
            app, number = transaction_id
            builder = builder.withTransactionId(app, int(number))  # py4j sends str() of an Lsn
        with _named_failures(table):
            transaction = builder.build(self.engine)
            rows = self._appended(transaction, snapshot.getSchema(), files, more_ids)
            return self._commit(transaction, rows, int(snapshot.getVersion()))

    def rewriting(
        self, table: str, removed: Sequence[AddedFile], added: Sequence[DataFile]
    ) -> Rewriting:
        """The actions that replace `removed` by `added`, which hold the same rows."""
        now_ms = time.time_ns() // 1_000_000
        actions = [_remove(file, now_ms) for file in removed]
        actions += [_add(table, file, now_ms) for file in added]
        return self.changing(actions)

    def changing(self, actions: Sequence[Mapping[str, Any]]) -> Rewriting:
        """Actions (`add`, `remove`, `txn`) as they are in the log."""
        return Rewriting(len(actions), self._rows.inMemoryIterable(self._actions(actions)))

    def rewrite(self, table: str, snapshot: Java, rewriting: Rewriting) -> Commit:
        """Commit a rewrite on top of `snapshot`. Raises as `append` does."""
        builder = snapshot.buildUpdateTableTransaction(engine_info(rewriting.actions), self._manual)
        with _named_failures(table):
            transaction = builder.withMaxRetries(0).build(self.engine)
            return self._commit(transaction, rewriting.rows, int(snapshot.getVersion()))

    def transaction_id(self, snapshot: Java, app: str) -> int | None:
        """The transaction version that `app` last committed with, as of `snapshot`."""
        stored = snapshot.getLatestTransactionVersion(self.engine, app)
        return int(stored.get()) if stored.isPresent() else None

    def properties(self, snapshot: Java) -> dict[str, str]:
        """The table's properties, as of `snapshot`."""
        entries = snapshot.getMetadata().getConfiguration().entrySet().toArray()
        return {str(entry.getKey()): str(entry.getValue()) for entry in entries}

    def clustering(self, snapshot: Java) -> list[str]:
        """The columns by which OPTIMIZE brings rows together, by their names in the files."""
        stored = snapshot.getDomainMetadata(CLUSTERING)
        paths = json.loads(stored.get())["clusteringColumns"] if stored.isPresent() else []
        return [name for [name] in paths]

    def table_id(self, snapshot: Java) -> str:
        """The id that the table was created with."""
        return str(snapshot.getMetadata().getId())

    def files(self, snapshot: Java) -> list[AddedFile]:
        """The files whose rows are the table, as of `snapshot`."""
        return [added_file(add) for add in self.adds(snapshot)]

    def adds(self, snapshot: Java) -> list[dict[str, Any]]:
        """The `add` actions of these files, with their deletion vectors and statistics."""
        return self._adds(self._scan_files(snapshot))

    def schema(self, snapshot: Java) -> dict[str, Any]:
        """The table's schema as its log has it, with the names of columns in the files."""
        return json.loads(snapshot.getMetadata().getSchemaString())

    def few_files(
        self,
        snapshot: Java,
        most: int,
        within: Within = ALL_ROWS,
    ) -> list[AddedFile] | None:
        """
        The files whose rows are the table; `None` if there are more, or not all of their rows are.

        It reads the list until there are more, and at most LOOKED_AT entries of it.

        Shape:
            within: files without a row that has all of these are left out.
        """
        mapping = snapshot.getMetadata().getConfiguration().get("delta.columnMapping.mode")
        if mapping not in {None, "none"}:
            return None
        files, looked_at = list[AddedFile](), 0
        with closing(self._scan_files(snapshot)) as batches:
            while batches.hasNext():
                adds = self._adds(self._next(batches))
                looked_at += len(adds)
                files += [file for file in map(added_file, adds) if _file_may_have(file, within)]
                has_vectors = any(add.get("deletionVector") for add in adds)
                if len(files) > most or looked_at > LOOKED_AT or has_vectors:
                    return None
        return files

    def _next(self, batches: Java) -> Java:
        """The next batches, of some thousand files."""
        some, count = self._list(), 0
        while count < LISTED_AT_ONCE and batches.hasNext():
            batch = batches.next()
            some.add(batch)
            count += batch.getData().getSize()
        return self._utils.toCloseableIterator(some.iterator())

    def _scan_files(self, snapshot: Java) -> Java:
        """Batches of the files, with statistics."""
        return snapshot.getScanBuilder().build().getScanFiles(self.engine, True)  # noqa: FBT003

    def _adds(self, batches: Java) -> list[dict[str, Any]]:
        """The `add` actions of batches, by way of a file of JSON lines."""
        with tempfile.TemporaryDirectory(prefix="pgstream-") as folder:
            path = Path(folder) / "files.json"
            self.engine.getJsonHandler().writeJsonFileAtomically(
                uri.absolute(path),
                self._utils.intoRows(batches),
                True,  # noqa: FBT003  overwrite
            )
            # As bytes: in a text, other characters of a name end a line, too.
            return [json.loads(line)["add"] for line in path.read_bytes().splitlines()]

    def _appended(
        self,
        transaction: Java,
        schema: Java,
        files: Sequence[DataFile],
        more_ids: Mapping[str, int],
    ) -> Java:
        now_ms = time.time_ns() // 1_000_000
        ids = self._actions([_transaction_id(app, n, now_ms) for app, n in more_ids.items()])
        if not files:
            return self._rows.inMemoryIterable(ids)
        statuses = self._list()
        for file in files:
            statistics = self._statistics.deserializeFromJson(file.stats_json, schema)
            statuses.add(self._status(file.path, file.size, now_ms, statistics))
        state = transaction.getTransactionState(self.engine)
        context = self._transaction.getWriteContext(self.engine, state, self._no_partition)
        actions = self._transaction.generateAppendActions(
            self.engine, state, self._utils.toCloseableIterator(statuses.iterator()), context
        )
        return self._rows.inMemoryIterable(actions.combine(ids) if more_ids else actions)

    def _actions(self, actions: Sequence[Mapping[str, Any]]) -> Java:
        """Actions as rows of Kernel's action schema, by way of a file of JSON lines."""
        whole = self._list()
        if actions:
            with tempfile.TemporaryDirectory(prefix="pgstream-") as folder:
                path = Path(folder) / "actions.json"
                path.write_text("".join(json.dumps(action) + "\n" for action in actions))
                self._read_actions(path, whole)
        return self._utils.intoRows(self._utils.toCloseableIterator(whole.iterator()))

    def _read_actions(self, path: Path, whole: Java) -> None:
        stat = path.stat()
        status = self._file_status.of(uri.absolute(path), stat.st_size, 0)
        files = self._list()
        files.add(status)
        batches = self.engine.getJsonHandler().readJsonFiles(
            self._utils.toCloseableIterator(files.iterator()),
            self._action.FULL_SCHEMA,
            self._nothing,
        )
        while batches.hasNext():
            whole.add(self._batch(batches.next(), self._nothing))

    def _commit(self, transaction: Java, rows: Java, read_version: int) -> Commit:
        result = transaction.commit(self.engine, rows)
        version = int(result.getVersion())
        after = result.getPostCommitSnapshot()
        is_next = version == read_version + 1 and after.isPresent()
        # By index: the end of a Java iterator is an exception. Once there is a SparkSession,
        # PySpark looks up its class, which takes as long as the rest of the commit.
        hooks = result.getPostCommitHooks()
        by_index = [hooks.get(index) for index in range(hooks.size())]
        named = [(str(hook.getType().toString()), hook) for hook in by_index]
        return Commit(version, after.get() if is_next else None, named)

    def _struct(self, columns: pa.Schema) -> Java:
        struct = self._types.StructType()
        for column in columns:
            struct = struct.add(column.name, self._type(column.type))
        return struct

    def _type(self, type_: pa.DataType) -> Java:
        types = self._types
        if isinstance(type_, pa.MapType):
            return types.MapType(self._type(type_.key_type), self._type(type_.item_type), True)  # noqa: FBT003
        if isinstance(type_, pa.ListType):
            return types.ArrayType(self._type(type_.value_type), True)  # noqa: FBT003  may hold NULL
        simple = {
            pa.int32(): types.IntegerType.INTEGER,
            pa.int64(): types.LongType.LONG,
            pa.string(): types.StringType.STRING,
            pa.timestamp("us", "UTC"): types.TimestampType.TIMESTAMP,
        }
        return simple[type_]


def _file_may_have(file: AddedFile, within: Within) -> bool:
    return not within or may_have(file.statistics, within)


def _transaction_id(app: str, number: int, now_ms: int) -> dict[str, Any]:
    return {"txn": {"appId": app, "version": int(number), "lastUpdated": now_ms}}


def _remove(file: AddedFile, now_ms: int) -> dict[str, Any]:
    return {
        "remove": {
            "path": quote(file.name, safe=SAFE_IN_NAMES),
            "deletionTimestamp": now_ms,
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.size,
        }
    }


def _add(table: str, file: DataFile, now_ms: int) -> dict[str, Any]:
    return {
        "add": {
            "path": quote(uri.name_in(table, file.path), safe=SAFE_IN_NAMES),
            "partitionValues": {},
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": False,
            "stats": file.stats_json,
        }
    }


@contextmanager
def _named_failures(table: str) -> Generator[None]:
    """Raise `Conflict` or `CommitFailed` for an exception of a commit in the JVM."""
    try:
        yield
    except Py4JJavaError as error:
        name = class_name(error)
        if name in CONFLICTS:
            raise Conflict from error
        reason = f"{name}: {cast('Java', error.java_exception).getMessage()}"
        raise CommitFailed(table, reason) from error


def class_name(error: Py4JJavaError) -> str:
    """The name of the Java exception, without its package."""
    return cast("Java", error.java_exception).getClass().getSimpleName()
