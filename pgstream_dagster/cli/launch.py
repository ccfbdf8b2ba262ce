"""
Operations as runs of Dagster: `--dagster` launches a run instead of running the command.

It calls Dagster's own `dagster job launch`, with the instance of DAGSTER_HOME and the workspace of
the current folder, so it makes the run that the UI and the schedules make. Does not import Dagster.
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
"""The tag with the partition of a run: https://docs.dagster.io/api/dagster/internals"""


@dataclass(frozen=True, slots=True)
class Request:
    """A job to launch: run config, tags, and the ops to run (empty: all)."""

    job: str
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    ops: tuple[str, ...] = ()


Requests: TypeAlias = Callable[..., Iterable[Request]]
"""From a pipeline and a command's options: the runs that do the same as the command."""


def op_request(job: str, op: str, **config: Any) -> Request:
    """The request for a job of one op, with the config of the op."""
    return Request(job, {"ops": {op: {"config": config}}})


def launchable(requests: Requests) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Add `--dagster` to a command, which then launches the runs that `requests` returns.

    The command ends once the runs are queued; it prints their ids.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--dagster",
            "in_dagster",
            is_flag=True,
            help="Launch it as a run of Dagster instead, and print the run's id.",
        )
        @functools.wraps(command)
        def either(context: Any, *, in_dagster: bool, **options: Any) -> Any:
            if not in_dagster:
                return command(context, **options)
            pipeline = context.pipeline()  # report its problems and read `.env` before launching
            for request in requests(pipeline, **options):
                click.echo(f"launched run {launch(request)} of job '{request.job}'")
            return ExitCode.OK

        return either

    return add


def launch(request: Request) -> str:
    """
    Queue a run; its id.

    Raises:
        MissingSetting: DAGSTER_HOME, without which the run would be visible nowhere.
        LaunchFailed: Dagster refused it.
    """
    if not os.environ.get(HOME):
        raise MissingSetting(HOME, "the folder of Dagster's instance, where the run is kept")
    run_id = str(uuid.uuid4())
    completed = subprocess.run(
        [sys.executable, "-m", "dagster", *arguments(request), "--run-id", run_id],
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        raise LaunchFailed(request.job, last_line(completed.stderr))
    return run_id


def arguments(request: Request) -> Sequence[str]:
    """The arguments of the command `dagster`."""
    words = ["job", "launch", "--job", request.job]
    if request.config:
        words += ["--config-json", json.dumps(request.config)]
    if request.tags:
        words += ["--tags", json.dumps(request.tags)]
    if request.ops:
        words += ["--op-selection", ",".join(request.ops)]
    return words


def last_line(output: str) -> str:
    """The last line of a traceback, which is its message."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
