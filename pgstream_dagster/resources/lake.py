"""The lake as a Dagster resource: where the Delta tables are, and the JVM that writes them."""

import os
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from pgstream_dagster import settings
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.runtime.java import JvmSettings


class DeltaLake(dg.ConfigurableResource[Any]):
    """
    The change log and the tables beside it.

    A field that is left out is taken from the environment when a run starts.
    """

    root: str | None = Field(
        default=None, description="Folder of the lake; without it PGSTREAM_LAKE."
    )
    heap: str | None = Field(
        default=None,
        description="Heap of each run's JVM, e.g. 2g; without it PGSTREAM_JVM_HEAP, else 1g.",
    )
    master: str | None = Field(
        default=None,
        description="Spark's master; without it PGSTREAM_SPARK_MASTER, else local[2].",
    )
    state: str | None = Field(
        default=None,
        description="Local folder for what may be lost: spools, heartbeats; "
        "without it PGSTREAM_STATE, else .state.",
    )

    def lake(self) -> Lake:
        """The addresses of the tables; nothing is opened."""
        return Lake(settings.lake_root(self._environment()))

    def jvm(self) -> JvmSettings:
        """What this process' JVM is started with."""
        return settings.jvm_settings(self._environment())

    def state_folder(self) -> Path:
        """The local folder; made by who writes to it first."""
        return settings.state_folder(self._environment())

    def _environment(self) -> dict[str, str]:
        fields = {
            settings.LAKE: self.root,
            settings.HEAP: self.heap,
            settings.MASTER: self.master,
            settings.STATE: self.state,
        }
        return {**os.environ, **{name: said for name, said in fields.items() if said}}
