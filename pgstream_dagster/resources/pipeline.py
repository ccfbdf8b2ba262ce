"""The pipeline file as a Dagster resource, and where source, lake and search cluster meet."""

import os
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from pgstream_dagster.config import PipelineConfig, load, parse
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster


class PipelineFile(dg.ConfigurableResource[Any]):
    """What to do (`file` or `text`), from where (`source`), to where (`lake`, `search`)."""

    file: str = Field(description="Path of the pipeline file, read when a run starts.")
    text: str | None = Field(
        default=None, description="The content of the pipeline file, where it is given inline."
    )
    source: dg.ResourceDependency[PostgresSource]
    lake: dg.ResourceDependency[DeltaLake]
    search: dg.ResourceDependency[SearchCluster]

    def content(self) -> bytes:
        """The pipeline file as it is now; empty where the file is missing."""
        if self.text is not None:
            return self.text.encode()
        file = Path(self.file)
        return file.read_bytes() if file.exists() else b""

    def config(self) -> PipelineConfig:
        """
        The pipeline as the file describes it now.

        Raises:
            InvalidPipeline: it is missing or wrong.
        """
        return load(self.file) if self.text is None else parse(self.text, self.file)

    def open(self) -> Pipeline:
        """
        The pipeline that operations work on; no connection is opened.

        Raises:
            ConfigError: the file, or a setting from the environment, is wrong.
        """
        config = self.config()
        return Pipeline(
            config=config,
            dsn=self.source.address() if config.source.kafka is None else "",
            lake=self.lake.lake(),
            jvm=self.lake.jvm(),
            state=self.lake.state_folder(),
            search=self.search.settings(),
            environment=dict(os.environ),
        )
