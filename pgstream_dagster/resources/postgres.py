"""The source as a Dagster resource: how to reach it, and the life of its slot and publication."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from pgstream_dagster import settings
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.threads import run_cancellable, run_in_thread

if TYPE_CHECKING:
    from pgstream_dagster.copy.copying import Copied
    from pgstream_dagster.source.preflight import Finding
    from pgstream_dagster.upkeep.teardown import TornDown


class PostgresSource(dg.ConfigurableResource[Any]):
    """
    The Postgres that is read, and the life of a pipeline's slot and publication there.

    The jobs of the same names call `setup`, `resnapshot` and `teardown`; the end of a run drops
    nothing. Nothing is opened, and no engine imported, before a call needs it.
    """

    dsn: str | None = Field(
        default=None, description=f"{settings.DSN.description} {settings.ENV_VAR_HINT}"
    )

    def address(self) -> str:
        """The connection string; holds secrets."""
        return settings.dsn({settings.DSN: self.dsn} if self.dsn else os.environ)

    def check(self, pipeline: Pipeline) -> Sequence["Finding"]:
        """What a `setup` would find wrong, errors first; starts no JVM and changes nothing."""
        from pgstream_dagster.upkeep.check import check

        return run_in_thread(lambda: check(pipeline))

    def setup(self, pipeline: Pipeline) -> Sequence["Copied"]:
        """
        Create publication, slot and watermark where missing; copy every table without a copy.

        Safe to run again. A run that is terminated cancels what it waits for on the source.
        """
        from pgstream_dagster.upkeep.setup import setup

        return run_cancellable(lambda stop: setup(pipeline, stop=stop))

    def resnapshot(self, pipeline: Pipeline) -> Sequence["Copied"]:
        """Create a new slot, land the gap that it leaves, and copy every table."""
        from pgstream_dagster.upkeep.resnapshot import resnapshot

        return run_cancellable(lambda stop: resnapshot(pipeline, stop=stop))

    def teardown(self, pipeline: Pipeline) -> "TornDown":
        """Drop slot, with the WAL it holds, our publication and event triggers; the lake stays."""
        from pgstream_dagster.upkeep.teardown import teardown

        return run_in_thread(lambda: teardown(pipeline))
