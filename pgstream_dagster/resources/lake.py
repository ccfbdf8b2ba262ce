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
    The change log and the other tables of the lake.

    A field that is left out is taken from the environment when a run starts.
    """

    root: str | None = Field(default=None, description=settings.LAKE.description)
    heap: str | None = Field(default=None, description=settings.HEAP.description)
    master: str | None = Field(default=None, description=settings.MASTER.description)
    state: str | None = Field(default=None, description=settings.STATE.description)

    def lake(self) -> Lake:
        """The addresses of the tables; nothing is opened."""
        return Lake(settings.lake_root(self._environment()))

    def jvm(self) -> JvmSettings:
        """The settings of this process's JVM."""
        return settings.jvm_settings(self._environment())

    def state_folder(self) -> Path:
        """The local folder; the first write to it makes it."""
        return settings.state_folder(self._environment())

    def _environment(self) -> dict[str, str]:
        fields = {
            settings.LAKE: self.root,
            settings.HEAP: self.heap,
            settings.MASTER: self.master,
            settings.STATE: self.state,
        }
        return settings.with_fields(os.environ, fields)
