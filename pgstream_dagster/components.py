"""A pipeline as a component of Dagster: what `defs.yaml` takes, for projects that use `dg`."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from pgstream_dagster.definitions import build_definitions
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster


class PgstreamComponent(dg.Component, dg.Model, dg.Resolvable):
    """
    Everything of one pipeline: assets, checks, jobs, schedules, sensors and resources.

    Two of them in one location need different prefixes. What is not given is taken from the
    environment when a run starts; secrets belong there, or in `{{ env.NAME }}`.
    """

    file: str = Field(
        default="pgstream.yaml", description="The pipeline file; relative to this defs.yaml."
    )
    prefix: str = Field(
        default="", description="Before every name, where one location has several pipelines."
    )
    dsn: str | None = Field(
        default=None, description="Address of the source; without it PGSTREAM_DSN."
    )
    lake: str | None = Field(
        default=None, description="Folder or URI of the lake; without it PGSTREAM_LAKE."
    )
    state: str | None = Field(
        default=None, description="Local folder for signs of life; without it PGSTREAM_STATE."
    )
    search_url: str | None = Field(
        default=None, description="Address of the search cluster; without it PGSTREAM_SEARCH_URL."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the pipeline."""
        return build_definitions(
            Path(context.path) / self.file,
            source=PostgresSource(dsn=self.dsn),
            lake=DeltaLake(root=self.lake, state=self.state),
            search=SearchCluster(url=self.search_url),
            prefix=self.prefix,
        )
