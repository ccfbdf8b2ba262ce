"""A pipeline as a component of Dagster: what `defs.yaml` takes, for projects that use `dg`."""

from pathlib import Path
from typing import Final, Literal

import dagster as dg
from pydantic import Field

from pgstream_dagster.definitions import build_definitions
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster

EXECUTORS: Final = {
    "in_process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor,
}


class PgstreamComponent(dg.Component, dg.Model, dg.Resolvable):
    """
    Everything of one pipeline: assets, checks, jobs, schedules, sensors and resources.

    Two of them in one location need different prefixes. What is not given is taken from the
    environment when a run starts. Of secrets only the variables' names are given: a value, also
    one of `{{ env.NAME }}`, would be shown in the UI.
    """

    file: str = Field(
        default="pgstream.yaml", description="The pipeline file; relative to this defs.yaml."
    )
    prefix: str = Field(
        default="", description="Before every name, where one location has several pipelines."
    )
    executor: Literal["in_process", "multiprocess"] = Field(
        default="in_process",
        description="How steps run: all of a run in one process, with one JVM; or each in its own.",
    )
    dsn_variable: str | None = Field(
        default=None,
        description="Name of the environment variable that has the source's address; without it"
        " PGSTREAM_DSN, or libpq's own.",
    )
    lake: str | None = Field(
        default=None, description="Folder of the lake; without it PGSTREAM_LAKE."
    )
    state: str | None = Field(
        default=None, description="Local folder for signs of life; without it PGSTREAM_STATE."
    )
    search_url: str | None = Field(
        default=None,
        description="Address of the search cluster; without it PGSTREAM_SEARCH_URL, and all else of"
        " the cluster from the environment, too.",
    )
    search_user: str | None = Field(default=None, description="A user of that cluster.")
    search_password_variable: str | None = Field(
        default=None, description="Name of the environment variable that has the user's password."
    )
    search_api_key_variable: str | None = Field(
        default=None, description="Name of the environment variable that has an API key instead."
    )
    search_ca: str | None = Field(
        default=None, description="File of certificates by which that cluster is known (PEM)."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the pipeline."""
        return build_definitions(
            Path(context.path) / self.file,
            source=PostgresSource(dsn=_variable(self.dsn_variable)),
            lake=DeltaLake(root=self.lake, state=self.state),
            search=SearchCluster(
                url=self.search_url,
                user=self.search_user,
                password=_variable(self.search_password_variable),
                api_key=_variable(self.search_api_key_variable),
                ca_file=self.search_ca,
            ),
            prefix=self.prefix,
            executor=EXECUTORS[self.executor],
        )


def _variable(name: str | None) -> str | None:
    """What Dagster reads when a run starts, and shows as the variable's name."""
    return None if name is None else dg.EnvVar(name)
