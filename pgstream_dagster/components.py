"""A pipeline as a Dagster component: the attributes of `defs.yaml`, for projects that use `dg`."""

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import dagster as dg
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest, scaffold_with
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import Field

from pgstream_dagster.assets.names import PgstreamTranslator
from pgstream_dagster.assets.replay import FIRST_DAY
from pgstream_dagster.build import build_definitions
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster

EXECUTORS: Final = {
    "in_process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor,
}


class _Translated(PgstreamTranslator):
    """Applies the `translation` of `defs.yaml`."""

    def __init__(self, translation: TranslationFn[None]) -> None:
        self._translation = translation

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return self._translation(spec, None)


def _as_in_lake(field: str) -> Any:
    """An attribute passed on to this field of `DeltaLake`."""
    return Field(default=None, description=DeltaLake.model_fields[field].description)


SCAFFOLD: Final = """\
# A pipeline of pgstream_dagster. Every attribute is optional; those that are commented out show
# their default, or an example.
type: {type_name}
attributes:
  file: pgstream.yaml                # relative to this file
  # prefix: shop                     # for several pipelines in one code location
  # dsn_variable: PGSTREAM_DSN       # environment variable with the source's connection string
  # lake: /srv/lake/shop             # default: the variable PGSTREAM_LAKE
  # state: /var/lib/pgstream/shop    # default: the variable PGSTREAM_STATE, else .state
  # heap: 1g                         # heap of each run's JVM
  # master: local[2]                 # Spark's master
  # search_url: https://search:9200  # default: the variable PGSTREAM_SEARCH_URL
  # search_user: pgstream            # with search_password_variable: PGSTREAM_SEARCH_PASSWORD
  # search_api_key_variable: PGSTREAM_SEARCH_API_KEY
  # search_ca: /etc/ssl/search.pem
  # executor: in_process             # or multiprocess: a process and a JVM per step
  # first_day: "2026-01-01"          # first partition of daily_changes
  # pipeline: {{pipeline: shop}}       # the pipeline inline; then `file` is not read
  # translation:                     # attributes of every asset
  #   group_name: shop
  #   owners: ["team:data"]
  #   key_prefix: [raw, shop]
"""

PIPELINE: Final = """\
pipeline: {name}
source:
  tables: all
"""


class PgstreamScaffolder(Scaffolder[Any]):
    """Writes a `defs.yaml` that names every attribute, and a pipeline file to begin with."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Write both files; a pipeline file that exists stays as it is."""
        folder = request.target_path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "defs.yaml").write_text(SCAFFOLD.format(type_name=request.type_name))
        pipeline = folder / "pgstream.yaml"
        if not pipeline.exists():
            pipeline.write_text(PIPELINE.format(name=folder.name))


@scaffold_with(PgstreamScaffolder)
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
    pipeline: dict[str, Any] | None = Field(
        default=None, description="The content of the pipeline file, inline; `file` is not read."
    )
    translation: (
        Annotated[
            TranslationFn[None],
            TranslationFnResolver[None](template_vars_for_translation_fn=lambda _: {}),
        ]
        | None
    ) = Field(
        default=None,
        description="Attributes of every asset: key_prefix, group_name, owners, tags,"
        " automation_condition. `{{ spec }}` is the asset as it would be without.",
    )
    first_day: str = Field(
        default=FIRST_DAY, description="First day of the partitions of `daily_changes`."
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
    lake: str | None = _as_in_lake("root")
    state: str | None = _as_in_lake("state")
    heap: str | None = _as_in_lake("heap")
    master: str | None = _as_in_lake("master")
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
            text=None if self.pipeline is None else json.dumps(self.pipeline),
            source=PostgresSource(dsn=_variable(self.dsn_variable)),
            lake=DeltaLake(root=self.lake, state=self.state, heap=self.heap, master=self.master),
            search=SearchCluster(
                url=self.search_url,
                user=self.search_user,
                password=_variable(self.search_password_variable),
                api_key=_variable(self.search_api_key_variable),
                ca_file=self.search_ca,
            ),
            prefix=self.prefix,
            executor=EXECUTORS[self.executor],
            translator=None if self.translation is None else _Translated(self.translation),
            first_day=self.first_day,
        )


def _variable(name: str | None) -> str | None:
    """A value that Dagster reads when a run starts, and shows as the variable's name."""
    return None if name is None else dg.EnvVar(name)
