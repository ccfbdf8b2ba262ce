"""
The log, and files with its columns, as DataFrames.

Kernel lists the files of a log that has few: Spark's Delta reads each new version by jobs of its
own, which take five times as long as the rows. Of many files it reads those that a condition needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.delta import jvm, uri
from pgstream_dagster.delta.kernel import kernel
from pgstream_dagster.schema.layout import CHANGES_DDL

FEW_FILES: Final = 32
"""Spark looks for more files than these by a job."""

_PATTERNS: Final = re.compile(r"[{}\[\]*?\\]")
"""Spark takes a path for a pattern of file names; a backslash makes these mean themselves."""


def read_log(spark: SparkSession, lake: Lake) -> DataFrame:
    """
    Every row of the version that is newest now.

    Raises:
        TableMissing: there is no log.
    """
    table = lake.change_log
    delta = kernel(jvm.gateway())
    files = delta.files(delta.load(table))
    if 0 < len(files) <= FEW_FILES:
        return read_files(spark, [uri.child(table, file.name) for file in files])
    return spark.read.format("delta").load(table)


def read_files(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """The rows of files, by their URIs, at least one."""
    paths = (re.sub(_PATTERNS, r"\\\g<0>", file) for file in files)
    return spark.read.schema(CHANGES_DDL).parquet(*paths)
