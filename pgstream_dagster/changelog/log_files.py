"""
The log, and files with its columns, as DataFrames.

Kernel lists the files where few have the rows that are looked for: Spark's Delta reads each new
version by jobs of its own, which take five times as long as the rows. Of many files it reads those
that a condition needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.delta import uri
from pgstream_dagster.delta.kernel import kernel
from pgstream_dagster.delta.statistics import ALL_ROWS, Within
from pgstream_dagster.errors import FilesAway
from pgstream_dagster.schema.layout import CHANGES_DDL, no_changes

FEW_FILES: Final = 32
"""Spark looks for more files than these by a job."""

_PATTERNS: Final = re.compile(r"[{}\[\]*?\\]")
"""Spark takes a path for a pattern of file names; a backslash makes these mean themselves."""


def read_log(
    spark: SparkSession,
    lake: Lake,
    *,
    within: Within = ALL_ROWS,
    is_pinned: bool = False,
) -> DataFrame:
    """
    Every row of the version that is newest now, or at least those within bounds.

    Where many files have these rows, a later use of the DataFrame reads the version that is newest
    then, unless it is pinned; that costs a list of the log's entries.

    Shape:
        within: rows that lack one of these may be left out.

    Raises:
        TableMissing: there is no log.
        FilesAway: files that it lists are not there.
    """
    table = lake.change_log
    delta = kernel(spark.sparkContext._gateway)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    snapshot = delta.load(table)
    files = None if _is_refused(table) else delta.few_files(snapshot, FEW_FILES, within)
    if files is None:
        version = {"versionAsOf": int(snapshot.getVersion())} if is_pinned else {}
        return spark.read.format("delta").options(**version).load(table)
    if not files:
        return spark.createDataFrame(no_changes())
    return read_files(spark, [uri.child(table, file.name) for file in files])


def read_files(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """
    The rows of files, by their URIs, at least one.

    Raises:
        FilesAway: not all are there; Spark takes one that vanishes while it looks for empty.
    """
    paths = (re.sub(_PATTERNS, r"\\\g<0>", file) for file in files)
    try:
        rows = spark.read.schema(CHANGES_DDL).parquet(*paths)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise FilesAway(files) from error
    if len(rows.inputFiles()) != len(set(files)):
        raise FilesAway(files)
    return rows


def _is_refused(table: str) -> bool:
    """Whether Spark cannot read files in this folder by their names."""
    _, _, path = table.partition(":")
    return ":" in path and bool(_PATTERNS.search(path))
