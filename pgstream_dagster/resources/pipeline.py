"""The pipeline file as a Dagster resource, and where source, lake and search cluster meet."""

from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from pgstream_dagster.config import load
from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster


class PipelineFile(dg.ConfigurableResource[Any]):
    """What to do (the file), from where (`source`), to where (`lake`, `search`)."""

    file: str = Field(description="Path of the pipeline file, read when a run starts.")
    source: dg.ResourceDependency[PostgresSource]
    lake: dg.ResourceDependency[DeltaLake]
    search: dg.ResourceDependency[SearchCluster]

    def open(self) -> Pipeline:
        """
        What every operation is given; no server is asked yet.

        Raises:
            ConfigError: the file, or a setting it is read with.
        """
        return Pipeline(
            config=load(Path(self.file)),
            dsn=self.source.address(),
            lake=self.lake.lake(),
            jvm=self.lake.jvm(),
            state=self.lake.state_folder(),
            search=self.search.settings(),
        )
