"""The lake as a Dagster resource: where the Delta tables are, and the JVM that writes them."""

import os
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from pgstream_dagster import settings
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import LOG_FOLDER
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

    def typed_tables(self) -> list[str]:
        """
        The typed tables that are in the lake now, by name; looks at a local folder only.

        None while the lake is not known, as where definitions load without a variable set.
        """
        given = self.root.get_value() if isinstance(self.root, dg.EnvVar) else self.root
        root = (given or os.environ.get(settings.LAKE, "")).strip()
        folder = uri.local(Lake(root).typed_folder) if root else None
        if folder is None or not folder.is_dir():
            return []
        return sorted(place.name for place in folder.iterdir() if (place / LOG_FOLDER).is_dir())

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
