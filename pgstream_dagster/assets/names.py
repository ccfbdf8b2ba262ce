"""The names of one pipeline's definitions, and how a run of one of them opens the pipeline."""

import re
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import dagster as dg

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.resources.pipeline import PipelineFile

PREFIX: Final = re.compile(r"([A-Za-z0-9_]+(/[A-Za-z0-9_]+)*)?")
"""What Dagster accepts in every kind of name, in parts."""

Context: TypeAlias = (
    dg.OpExecutionContext
    | dg.AssetExecutionContext
    | dg.AssetCheckExecutionContext
    | dg.SensorEvaluationContext
    | dg.ScheduleEvaluationContext
)
"""Whatever has the resources of a run or of a tick."""


class PgstreamTranslator:
    """
    Maps each asset of a pipeline to what the code location wants it to be.

    Override `get_asset_spec` to change the key, group, owners, tags, metadata or automation
    condition, as with the translators of dagster-dbt and dagster-dlt. The key must depend on the
    given key only: references to an asset (dependencies, events) are translated from its key alone.
    """

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """The spec that Dagster shows for `spec`."""
        return spec


@dataclass(frozen=True, slots=True)
class Names:
    """
    The names of one pipeline's definitions.

    A `prefix`, in parts separated by `/`, precedes each of them, so that one code location can have
    several pipelines. What is shared by a Dagster instance (pools, run tags, partition sets) also
    carries the name of the `pipeline`, so that code locations leave each other's runs alone.

    Raises:
        ValueError: the prefix has characters that Dagster does not accept.
    """

    prefix: str = ""
    pipeline: str = "pgstream"
    translator: PgstreamTranslator = field(default_factory=PgstreamTranslator)

    def __post_init__(self) -> None:
        if not PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f"prefix {self.prefix!r}: letters, digits and underscores only, in parts that are"
                " separated by '/'"
            )

    @property
    def _parts(self) -> list[str]:
        return self.prefix.split("/") if self.prefix else []

    def prefixed(self, name: str) -> str:
        """The name of a job, op, sensor or schedule."""
        return "_".join([*self._parts, name])

    def resource(self, name: str) -> str:
        """The name of a resource; `pgstream_` keeps it apart from the code location's own."""
        return self.prefixed(f"pgstream_{name}")

    def in_instance(self, name: str) -> str:
        """The name of a pool, a set of partitions, or a job that is kept running."""
        return "/".join([*self._parts, self.pipeline, name])

    def spec(self, *parts: str, **attributes: Any) -> dg.AssetSpec:
        """An asset with these attributes of `AssetSpec`, as the code location wants it."""
        return self.translator.get_asset_spec(dg.AssetSpec([*self._parts, *parts], **attributes))

    def key(self, *parts: str) -> dg.AssetKey:
        """The key of an asset, as the code location wants it."""
        return self.spec(*parts).key

    @property
    def resources(self) -> set[str]:
        """The resource that every op needs."""
        return {self.resource("pipeline")}

    def file(self, context: Context) -> PipelineFile:
        """The pipeline file among the resources of a run or a tick."""
        file: PipelineFile = getattr(context.resources, self.resource("pipeline"))
        return file

    def open(self, context: Context) -> Pipeline:
        """
        The pipeline that a run or a tick works on.

        Raises:
            ConfigError: the file, or a setting from the environment, is wrong.
        """
        return self.file(context).open()
