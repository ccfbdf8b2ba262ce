"""
The one JVM of this process: Delta Kernel at once, a SparkSession when something needs Spark.

Landing needs only the gateway (about 2.5 s, 200 MB); the SparkSession is created later in the same
JVM. The JVM reads a pipe from this process and ends when that closes, so it does not outlive a
killed parent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

from py4j.java_gateway import JavaGateway
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pgstream_dagster.delta.java_names import remember_names
from pgstream_dagster.runtime.jars import fetch
from pgstream_dagster.runtime.java import JvmSettings, collector, spark_java_home
from pgstream_dagster.stop import Cancelled

T = TypeVar("T")

Java: TypeAlias = Any
"""An object of the JVM: py4j knows its members at run time only."""

OPTIMIZED_FILE_BYTES: Final = 128 << 20
"""Files of 128 MB keep relations apart; Delta's own default of 1 GB holds many in one."""

HADOOP: Final = {
    "spark.hadoop.io.delta.kernel.logStore.file.impl": "io.delta.storage.LocalLogStore",
}

# Hadoop's checksummed local file system writes a second file for every file, which a crash can
# leave torn, and calls the shell for links and modes: a commit takes 44 ms, and 11 with these.
RAW_FILES: Final = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}

# Hadoop's start programs for a file (chmod, readlink), these do not. A Spark elsewhere may open a
# file before it has our jar.
LOCAL_FILES: Final = {
    "spark.hadoop.fs.file.impl": "pgstream.LocalFiles",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "pgstream.LocalFiles$Context",
}

DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # the default of 50 tasks takes seconds
    # Else a version's checksum lists its files, which nothing reads, and each commit runs a job to
    # find them.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    "spark.databricks.delta.optimize.maxFileSize": str(OPTIMIZED_FILE_BYTES),
    "spark.databricks.delta.vacuum.logging.enabled": "false",  # its commits would need our lock
}

FIRST_HEAP: Final = "-Xms64m"
"""Java starts with a 64th of the machine's memory; a stream needs no more than this."""

COMPILER: Final = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Java optimises a method after ten times as many calls as by default. Most of Spark's code plans
queries and never runs often enough to repay that; loops over rows do within a second."""

SPARK: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Spark's default, INT96, is read as nanoseconds by Arrow: the year 0001 becomes 1754.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # a VACUUM: 6 s, not 58
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # 2 round trips less per F.col(...)
    "spark.ui.enabled": "false",
    # Each query's plan is written out for the UI, each time a part of it is planned.
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.cleaner.periodicGC.interval": "10min",
    # Persisted rows are gathered in batches on the heap; 10,000 with long texts do not fit.
    "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
    # Parquet is read in batches on the heap; 4,096 rows with long texts do not fit.
    "spark.sql.parquet.columnarReaderBatchSize": "64",
    # A JVM only interprets methods of more than 8,000 bytes; with this, Spark splits such a stage.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Generated classes are kept for the next query of the same form; the default of 100 is less
    # than a reader's queries have. One takes some 300 kB.
    "spark.sql.codegen.cache.maxEntries": "300",
    # The states of files that a query has listed; no later query finds them.
    "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
    # A fold groups what a window has sorted for it; hashing it first, in memory, sorts it again.
    "spark.sql.execution.replaceHashWithSortAgg": "true",
}


END_SECONDS: Final = 2.0
"""The longest time from a JVM's closed sockets to the end of its process."""

_lock: Final = threading.RLock()
_gateway: JavaGateway | None = None  # one per process, as in pyspark

replaced: int | None = None
"""The exit code of a JVM that ended before the present one; some callers may still use it."""


def gateway(settings: JvmSettings | None = None) -> JavaGateway:
    """
    The JVM, started at the first call; later calls get the same one, whatever their settings.

    A JVM that has ended is replaced; what was opened with it cannot be used any more.

    Raises:
        JavaMissing: no Java 17 or later.
        JarsMissing: a jar of Delta cannot be fetched.
    """
    global _gateway, replaced  # noqa: PLW0603
    with _lock:
        if (code := exit_code()) is not None:
            _forget_spark()
            _gateway, replaced = None, code
        if _gateway is None:
            with _java_home():
                _gateway = launch_gateway(cast("Any", _Conf(_conf(settings or JvmSettings()))))
            remember_names(_gateway)
        return _gateway


def _forget_spark() -> None:
    """Clear PySpark's classes, which keep the JVM after it has ended."""
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    SparkContext._active_spark_context = None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    SparkSession._instantiatedSession = None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def spark(settings: JvmSettings) -> SparkSession:
    """The SparkSession in the same JVM, created at the first call (about 3 s)."""
    with _lock:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # tasks: this very Python
        jvm = gateway(settings)
        SparkContext._ensure_initialized(gateway=jvm)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        builder = SparkSession.builder
        for name, value in _conf(settings).items():
            builder = builder.config(name, value)
        session = builder.appName("pgstream").getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return session


def run_job(
    context: SparkContext,
    tag: str,
    job: Callable[[], T],
    *,
    stop: threading.Event,
    poll: Callable[[], None],
    poll_seconds: float,
) -> Future[T]:
    """
    Run a Spark job in another thread and call `poll` here every `poll_seconds` until it has ended.

    The job is cancelled when `stop` is set and when `poll` raises; no task of it is left behind.

    Raises:
        Cancelled: `stop` was set, and the job failed.
    """

    def tagged() -> T:
        context.addJobTag(tag)
        context.setInterruptOnCancel(interruptOnCancel=True)
        return job()

    with ThreadPoolExecutor(1, thread_name_prefix="pgstream-spark") as pool:
        running = pool.submit(tagged)
        try:
            while not wait([running], poll_seconds).done:
                if stop.is_set():  # again and again: a job that has not begun cannot be cancelled
                    context.cancelJobsWithTag(tag)
                poll()
        except BaseException:
            while not wait([running], poll_seconds).done:
                context.cancelJobsWithTag(tag)
            raise
    if stop.is_set() and (error := running.exception()) is not None:
        raise Cancelled from error
    return running


def exit_code(wait_seconds: float = 0.0) -> int | None:
    """The exit code of this process' JVM; `None`: it runs, or was never started."""
    if _gateway is None:
        return None
    try:
        return int(cast("Any", _gateway).proc.wait(wait_seconds))
    except subprocess.TimeoutExpired:
        return None


def _conf(settings: JvmSettings) -> dict[str, str]:
    ours = resources.files("pgstream_dagster.delta")
    jars = [*map(str, fetch("spark")), str(ours.joinpath("local_files.jar"))]
    log4j = ours.joinpath("log4j2.properties")
    return {
        **HADOOP,
        **DELTA,
        **SPARK,
        "spark.master": settings.master,
        "spark.driver.memory": settings.heap,
        # Spark makes this folder, where we keep no table; by default in the current folder.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "pgstream-warehouse")),
        "spark.jars": ",".join(jars),  # for executors elsewhere
        "spark.driver.extraClassPath": os.pathsep.join(jars),
        "spark.driver.extraJavaOptions": " ".join(
            [f"-Dlog4j2.configurationFile={log4j}", *collector(), FIRST_HEAP, *COMPILER]
        ),
        **_of_master(settings.master),
        **settings.conf,
    }


def _of_master(master: str) -> Mapping[str, str]:
    """A local Spark has our file system, and is reachable from this machine only."""
    if not master.startswith("local"):
        return RAW_FILES
    loopback = "127.0.0.1"
    return {
        **LOCAL_FILES,
        "spark.driver.host": loopback,
        "spark.driver.bindAddress": loopback,
    }


class _Conf:
    """The part of a SparkConf that `launch_gateway` uses; a real one would need a JVM."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._conf = conf

    def getAll(self) -> list[tuple[str, str]]:  # noqa: N802  pyspark's name
        return list(self._conf.items())


@contextmanager
def _java_home() -> Generator[None]:
    """JAVA_HOME for Spark's launcher, which reads it from this process' environment."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(spark_java_home())
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before
