"""Errors of an operation's surroundings (JVM, file descriptors, lake), raised by name."""

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
    """Let an operation raise the errors of `faults.named`, too."""

    @wraps(operation)
    def run(pipeline: Pipeline, *args: P.args, **settings: P.kwargs) -> T:
        with faults.named(_place(pipeline)):
            return operation(pipeline, *args, **settings)

    return run


def _place(pipeline: Pipeline) -> str:
    """A folder that exists unless the lake is away; before `setup`, the lake's future parent."""
    root = uri.local(pipeline.lake.uri)
    if root is None or pipeline.lake.is_made:
        return pipeline.lake.change_log
    return uri.absolute(next(path for path in (root, *root.parents) if path.is_dir()))
