"""
The log, and files with its columns, as DataFrames.

Kernel lists the files where few have the rows that are looked for: Spark's Delta reads each new
version by jobs of its own, which take five times as long as the rows. Of many files it reads those
that a condition needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import AddedFile
from pgstream_dagster.delta.kernel import kernel
from pgstream_dagster.delta.statistics import ALL_ROWS, Within
from pgstream_dagster.errors import FilesAway
from pgstream_dagster.schema.layout import CHANGES_DDL, no_changes

FEW_FILES: Final = 32
"""Spark looks for more files than these by a job."""

LISTED_FILES: Final = 1_000
"""To say by statistics what they have, no more files are listed."""

_PATTERNS: Final = re.compile(r"[{}\[\]*?\\]")
"""Spark takes a path for a pattern of file names; a backslash makes these mean themselves."""


@dataclass(frozen=True, slots=True)
class LogVersion:
    """The rows of one version of the log, and the files that they are in; `None`: not listed."""

    rows: DataFrame
    files: Sequence[AddedFile] | None


def read_log(spark: SparkSession, lake: Lake, *, within: Within = ALL_ROWS) -> DataFrame:
    """
    Every row of the version that is newest now, or at least those within bounds.

    Where many files have these rows, a later use of the DataFrame reads the version that is newest
    then.

    Shape:
        within: rows that lack one of these may be left out.

    Raises:
        TableMissing: there is no log.
        FilesAway: files that it lists are not there.
    """
    _, files = _list_files(spark, lake, FEW_FILES, within)
    few = None if files is None else read_few(spark, lake, files)
    return spark.read.format("delta").load(lake.change_log) if few is None else few


def read_version(spark: SparkSession, lake: Lake, within: Within) -> LogVersion:
    """As `read_log`, but a later use of the DataFrame reads the same version."""
    version, files = _list_files(spark, lake, LISTED_FILES, within)
    rows = None if files is None else read_few(spark, lake, files)
    if rows is None:
        reader = spark.read.format("delta").option("versionAsOf", version)
        rows = reader.load(lake.change_log)
    return LogVersion(rows, files)


def read_few(spark: SparkSession, lake: Lake, files: Sequence[AddedFile]) -> DataFrame | None:
    """
    The rows of files of the log; `None`: they are too many for Spark to be given their names.

    Raises:
        FilesAway: not all are there.
    """
    if len(files) > FEW_FILES:
        return None
    if not files:
        return spark.createDataFrame(no_changes())
    return read_files(spark, [uri.child(lake.change_log, file.name) for file in files])


def _list_files(
    spark: SparkSession, lake: Lake, most: int, within: Within
) -> tuple[int, list[AddedFile] | None]:
    """The newest version, and its files with rows within bounds, unless Spark has to list them."""
    table = lake.change_log
    delta = kernel(spark.sparkContext._gateway)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    snapshot = delta.load(table)
    files = None if _is_refused(table) else delta.few_files(snapshot, most, within)
    return int(snapshot.getVersion()), files


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
