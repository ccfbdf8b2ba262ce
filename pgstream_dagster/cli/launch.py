"""
Operations as runs of Dagster: `--dagster` launches a run instead of running the command.

It calls Dagster's own `dagster job launch`, with the instance of DAGSTER_HOME and the workspace of
the current folder, so it makes the run that the UI and the schedules make. Does not import Dagster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

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
        *_, message = (completed.stderr.strip() or "it printed nothing").splitlines()
        raise LaunchFailed(request.job, message.strip())
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
