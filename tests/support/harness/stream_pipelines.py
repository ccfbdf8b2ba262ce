"""Pipelines of the tests of the stream, and waiting for what a stream does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pgstream_dagster.config import CaptureConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import oracle, rows, runner
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

TABLE = "create table t (id bigint primary key, x text)"
FULL = "with (publish_via_partition_root = true)"

TREE = (
    "create table t (id bigint, x text, primary key (id)) partition by range (id)",
    "create table t1 partition of t for values from (0) to (10)",
    "create table t2 partition of t for values from (10) to (20)",
)

CAPTURE = CaptureConfig(flush_seconds=0.1, idle_advance_seconds=1, catalog_check_seconds=1)


def wait_until_landed(pipeline: Pipeline) -> None:
    target = runner.flushed(pipeline.dsn)
    # A transaction, so that a position behind it is landed at once: that of a quiet source is
    # recorded now and then only, and told once.
    psql(pipeline.dsn, "select pg_logical_emit_message(true, 'pgstream', '')")
    log, app = runner.change_log(pipeline), runner.app(pipeline)
    until(lambda: oracle.watermarks(log, app)[-1] >= target, seconds=runner.END_SECONDS, every=0.1)


def wait_until_recopier_polled(pipeline: Pipeline) -> None:
    """At the catalog as it is now: it copies a table made now, and all that is due with it."""
    wait_until_landed(pipeline)
    copies = copies_of(pipeline, "mark")
    psql(pipeline.dsn, "create table mark (id int primary key)")
    until(lambda: copies_of(pipeline, "mark") > copies, seconds=runner.END_SECONDS, every=0.2)


def set_up_table(dsn: str, folder: Path, *, table: Sequence[str] = (TABLE,)) -> Pipeline:
    """Set up over one small table."""
    psql(dsn, *table, "insert into t values (1, 'copied')")
    return set_up_pipeline(dsn, folder)


def set_up_pipeline(dsn: str, folder: Path) -> Pipeline:
    """Set up over what is there."""
    pipeline = runner.new_pipeline(dsn, folder, capture=CAPTURE)
    pipeline.state.mkdir(parents=True)
    setup(pipeline)
    return pipeline


def publication_name(dsn: str, folder: Path) -> str:
    return runner.new_pipeline(dsn, folder).config.source.publication


def wait_for_copies(pipeline: Pipeline, *tables: str, copies: int = 2) -> None:
    for table in tables:
        until(lambda: copies_of(pipeline, table) == copies, seconds=runner.END_SECONDS, every=0.2)  # noqa: B023
    wait_until_landed(pipeline)


def copies_of(pipeline: Pipeline, table: str) -> int:
    """How many copies of a table the log has."""
    log = runner.change_log(pipeline)
    return sum(
        change.op is Op.COPY and change.relation == table
        for file in rows.active_files(log)
        for change in oracle.rows(log, file)
    )
