"""One lake for all readers, made from a real Postgres, and the same log with other typed tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.delta import uri
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.runtime.jars import fetch
from pgstream_dagster.tables import direct
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.upkeep.setup import setup
from tests.readers import source
from tests.support.harness import runner
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import typed_pipeline
from tests.support.plugins.cluster import Server, database

READ: Final = Path(__file__).with_name("read.py")

VARIANT: Final = {"public.documents": {"columns": {"doc": {"json": "variant"}}}}


@dataclass(frozen=True)
class Site:
    """
    A source in quiet, and lakes with its log.

    `pipeline` has typed tables with all features, `unmapped` without column mapping, `plain`
    without deletion vectors too.
    """

    dsn: str
    pipeline: Pipeline
    unmapped: Pipeline
    plain: Pipeline

    def folders(self) -> dict[str, Path]:
        """Every table that readers are asked for, by the name of its row in the page."""
        return {
            "change log": folder(self.pipeline.lake.change_log),
            "typed table": folder(self.pipeline.lake.typed_table("public.orders")),
            "typed table of many types": folder(
                self.pipeline.lake.typed_table("public.Many~20Types")
            ),
            "typed table with a variant": folder(
                self.pipeline.lake.typed_table("public.documents")
            ),
            "`column_mapping: false`": folder(self.unmapped.lake.typed_table("public.orders")),
            "both false": folder(self.plain.lake.typed_table("public.orders")),
        }


def folder(table: str) -> Path:
    """The folder of a table's URI."""
    path = uri.local(table)
    assert path is not None
    return path


@pytest.fixture(scope="session")
def site(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tables with updates and deletes by deletion vectors, a rename, a drop, an added column."""
    with database(postgres) as dsn:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(direct, "TINY_BYTES", 0)  # small files are marked, too
            made = _made(dsn, tmp_path_factory.mktemp("readers"))
        yield made


def _made(dsn: str, at: Path) -> Site:
    execute(dsn, source.TYPES, source.FIRST_ROWS, source.ORDERS, source.DOCUMENTS)
    pipeline = typed_pipeline(dsn, at, types=VARIANT)
    setup(pipeline)
    runner.catch_up(pipeline)
    merge_tables(pipeline)
    execute(dsn, *source.CHANGES, *source.COLUMN_CHANGES)
    runner.catch_up(pipeline)
    unmapped = _with_log_of(pipeline, at / "unmapped", column_mapping=False)
    merge_tables(unmapped)
    execute(dsn, *source.LAST_CHANGES)
    runner.catch_up(pipeline)
    plain = _with_log_of(pipeline, at / "plain", column_mapping=False, deletion_vectors=False)
    for made in (pipeline, unmapped, plain):
        merge_tables(made)
    log = folder(pipeline.lake.typed_table("public.orders")) / "_delta_log"
    assert any('"deletionVector":' in entry.read_text() for entry in log.glob("*.json"))
    return Site(dsn, pipeline, unmapped, plain)


def _with_log_of(pipeline: Pipeline, lake: Path, **features: bool) -> Pipeline:
    """A pipeline with the same log, and typed tables of `orders` of its own."""
    lake.mkdir()
    for name in ("change_log", "schema_log", "ledger"):
        (lake / name).symlink_to(folder(pipeline.lake.uri) / name)
    tables = TablesConfig(include=("public.orders",), **features)
    config = pipeline.config.model_copy(update={"tables": tables})
    return replace(pipeline, config=config, lake=Lake(str(lake)))


@dataclass(frozen=True)
class Read:
    """What a reader has left of a table: `error`, or the Arrow file and the aggregate."""

    file: Path

    @property
    def error(self) -> str | None:
        """What the library raised."""
        path = Path(f"{self.file}.error")
        return path.read_text(encoding="utf-8") if path.exists() else None

    @property
    def paid(self) -> str:
        """Count and sum, by the reader's own filter and aggregate."""
        return Path(f"{self.file}.paid").read_text(encoding="utf-8")


class Readers:
    """What each reader has read of every table, in one process per reader."""

    def __init__(self, site: Site, at: Path) -> None:
        self._site, self._at = site, at
        self._read: dict[str, dict[str, Read]] = {}

    def read(self, reader: str, table: str) -> Read:
        """What the reader has left of a table."""
        if reader not in self._read:
            self._read[reader] = self._run(reader)
        return self._read[reader][table]

    def _run(self, reader: str) -> dict[str, Read]:
        places = {
            table: (folder, self._at / f"{reader} {number}.arrow")
            for number, (table, folder) in enumerate(self._site.folders().items())
        }
        arguments = [str(part) for place in places.values() for part in place]
        environment = os.environ | {"SPARK_SETTINGS": json.dumps(spark_settings())}
        subprocess.run([sys.executable, str(READ), reader, *arguments], check=True, env=environment)
        return {table: Read(file) for table, (_, file) in places.items()}


@pytest.fixture(scope="session")
def readers(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Readers:
    """The readers of the site."""
    return Readers(site, tmp_path_factory.mktemp("read"))


def spark_settings() -> dict[str, Any]:
    """What any user of Spark with Delta sets."""
    return {
        "spark.driver.extraClassPath": os.pathsep.join(map(str, fetch("spark"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",  # else 50 tasks for each table
    }
