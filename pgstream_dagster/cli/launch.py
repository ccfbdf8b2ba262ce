"""
Operations as runs of Dagster: what `--dagster` does in place of the command.

By Dagster's own `dagster job launch`, with the instance of DAGSTER_HOME and the workspace of the
current folder; so it is the run that its UI and its schedules would have made. Imports no Dagster.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import click

from pgstream_dagster.cli.exits import ExitCode
from pgstream_dagster.errors import LaunchFailed, MissingSetting

HOME: Final = "DAGSTER_HOME"

PARTITION_TAG: Final = "dagster/partition"
"""https://docs.dagster.io/api/dagster/internals; a run's partition is this tag of it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A job to launch: run config, tags, and those of its ops that shall run (none named: all)."""

    job: str
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    ops: tuple[str, ...] = ()


Requests: TypeAlias = Callable[..., Iterable[Request]]
"""Of a pipeline and a command's options: the runs that do the same."""


def of_op(job: str, op: str, **config: Any) -> Request:
    """A job of one op, with its config."""
    return Request(job, {"ops": {op: {"config": config}}})


def launchable(requests: Requests) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Add `--dagster` to a command: what `requests` makes of context and options is launched instead.

    The command ends when the runs are queued, and has printed their ids.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--dagster",
            "in_dagster",
            is_flag=True,
            help="Launch it as a run of Dagster instead, and print the run's id.",
        )
        @functools.wraps(command)
        def either(context: Any, *, in_dagster: bool, **given: Any) -> Any:
            if not in_dagster:
                return command(context, **given)
            pipeline = context.pipeline()  # its problems, and `.env`, before anything is launched
            for request in requests(pipeline, **given):
                click.echo(f"launched run {launch(request)} of job '{request.job}'")
            return ExitCode.OK

        return either

    return add


def launch(request: Request) -> str:
    """
    Queue a run; the run's id.

    Raises:
        MissingSetting: DAGSTER_HOME, without which the run is seen nowhere.
        LaunchFailed: Dagster did not take it.
    """
    if not os.environ.get(HOME):
        raise MissingSetting(HOME, "the folder of Dagster's instance, where the run is kept")
    run_id = str(uuid.uuid4())
    done = subprocess.run(
        [sys.executable, "-m", "dagster", *arguments(request), "--run-id", run_id],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LaunchFailed(request.job, last_line(done.stderr))
    return run_id


def arguments(request: Request) -> Sequence[str]:
    """Of the command `dagster`."""
    said = ["job", "launch", "--job", request.job]
    if request.config:
        said += ["--config-json", json.dumps(request.config)]
    if request.tags:
        said += ["--tags", json.dumps(request.tags)]
    if request.ops:
        said += ["--op-selection", ",".join(request.ops)]
    return said


def last_line(said: str) -> str:
    """What a traceback ends with."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
