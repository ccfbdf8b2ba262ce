"""One source under a workload, its pipeline, and what must be true when all is quiet again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import oracle, rows, runner, workload

SMALL: Final = (1_500, 4_000)
"""Rows of a large transaction here: past 64 kB, so streamed, and soon written."""


class Case:
    """
    A database with the workload's tables, an oracle, a pipeline that is not set up yet.

    `settle` brings everything to rest and compares: log with oracle, fold with source.
    """

    def __init__(self, dsn: str, folder: Path, **workload_settings: Any) -> None:
        self.dsn, self.pipeline = dsn, runner.new_pipeline(dsn, folder)
        self.pipeline.state.mkdir(parents=True, exist_ok=True)
        execute(
            dsn,
            f"alter database {conninfo_to_dict(dsn)['dbname']} set logical_decoding_work_mem ="
            " '64kB'",
        )
        workload.create(dsn)
        self.oracle = oracle.Oracle(dsn)
        settings = {"seed": 7, "rate": 40, "large_every": 25, "large_rows": SMALL, "burst": 100}
        self.workload = workload.Workload(dsn, **{**settings, **workload_settings})

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Meanwhile no sample may see a confirmed position that is not in the log."""
        with runner.Sampler(self.pipeline) as sampler:
            yield
        assert sampler.samples, "nobody looked"

    def set_up(self) -> None:
        """Set the pipeline up in this process; for the second time, too."""
        setup(self.pipeline)

    def dies(self, operation: str, failpoint: str) -> None:
        """Run an operation in its own process: it must reach the failpoint and end there."""
        with runner.running(operation, self.pipeline, failpoint=failpoint) as process:
            code = process.wait(runner.END_SECONDS)
        assert code == -signal.SIGKILL, (
            f"{operation} did not reach {failpoint} (exit code {code}):\n"
            f"{runner.output_of(operation, self.pipeline)}"
        )

    def settle(self) -> int:
        """End the workload, catch up, compare everything; the number of streamed changes."""
        self.workload.join()
        runner.catch_up(self.pipeline)
        changes = oracle.assert_log_equals(
            self.oracle, self.pipeline.lake.change_log, runner.app(self.pipeline)
        )
        rows.assert_log_folds_to_source(self.pipeline, workload.TABLES)
        return changes


def execute(dsn: str, *statements: str) -> None:
    """Run statements, each in its own transaction."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(cast("LiteralString", statement))
