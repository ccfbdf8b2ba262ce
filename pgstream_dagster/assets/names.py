"""What the definitions of one pipeline are called, and how a run of theirs gets at it."""

import re
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.resources.pipeline import PipelineFile

PREFIX: Final = re.compile(r"[A-Za-z0-9_]*")
"""What Dagster takes in every kind of name."""


@dataclass(frozen=True, slots=True)
class Names:
    """
    The names of one pipeline's definitions.

    A `prefix` goes before each of them: a code location may have several pipelines then.
    """

    prefix: str = ""

    def __post_init__(self) -> None:
        if not PREFIX.fullmatch(self.prefix):
            raise ValueError(f"prefix {self.prefix!r}: letters, digits and underscores only")

    def of(self, name: str) -> str:
        """A job's, op's, pool's, sensor's, schedule's or resource's name."""
        return f"{self.prefix}_{name}" if self.prefix else name

    def key(self, *parts: str) -> dg.AssetKey:
        """An asset's key."""
        return dg.AssetKey([self.prefix, *parts] if self.prefix else parts)

    @property
    def resources(self) -> set[str]:
        """The resource that each op needs."""
        return {self.of("pipeline")}

    def file(self, resources: Any) -> PipelineFile:
        """The pipeline file among a run's or a sensor's resources."""
        found: PipelineFile = getattr(resources, self.of("pipeline"))
        return found

    def open(self, context: dg.OpExecutionContext | dg.AssetExecutionContext) -> Pipeline:
        """
        What a run's operation is given.

        Raises:
            ConfigError: the file, or a setting it is read with.
        """
        return self.file(context.resources).open()
