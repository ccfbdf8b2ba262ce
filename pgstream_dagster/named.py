"""The end of an operation from outside (JVM, descriptors, lake) as an error with a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from pgstream_dagster.delta import faults, uri
from pgstream_dagster.pipeline import Pipeline

P = ParamSpec("P")
T = TypeVar("T")


def named(
    operation: Callable[Concatenate[Pipeline, P], T],
) -> Callable[Concatenate[Pipeline, P], T]:
    """Raise what `faults.named` raises, too."""

    @wraps(operation)
    def run(pipeline: Pipeline, *args: P.args, **settings: P.kwargs) -> T:
        with faults.named(_place(pipeline)):
            return operation(pipeline, *args, **settings)

    return run


def _place(pipeline: Pipeline) -> str:
    """A folder that is there when the lake is not away; where it will be made, before `setup`."""
    root = uri.local(pipeline.lake.address)
    if root is None or pipeline.lake.is_made:
        return pipeline.lake.change_log
    return uri.absolute(next(path for path in (root, *root.parents) if path.is_dir()))
