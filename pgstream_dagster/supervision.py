"""
What a sensor does about a long run (`stream`, `index`): leave it, end it, give it up, launch one.

Pure: runs, heartbeat and time in, one decision out. A run's status proves nothing (after a host
crash it stays "started" forever), so whether it runs is judged by its own heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from pgstream_dagster.heartbeat import SILENT_SECONDS, Heartbeat

STARTING_SECONDS: Final = 300.0
"""The same for a run without any heartbeat yet: imports and a JVM take 20 s, or minutes."""

FIRST_WAIT_SECONDS: Final = 10.0
LONGEST_WAIT_SECONDS: Final = 300.0
"""Between runs that fail one after the other; after a single failure there is no wait."""

LASTING_SECONDS: Final = 600.0
"""A run that lived longer does not count as a repeated failure: its cause is a new one."""


class Status(Enum):
    """A run's status, as far as it matters here."""

    WAITING = "waiting"  # to be started
    STARTED = "started"
    ENDING = "ending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Run:
    """
    One run; times are seconds of Unix time.

    `deployed` is the version it was started from, empty where a person launched it.
    """

    run_id: str
    status: Status
    began: float
    ended: float
    deployed: str

    @property
    def shown(self) -> str:
        """As the UI shortens it."""
        return f"run {self.run_id[:8]}"

    @property
    def lived(self) -> float:
        """For how many seconds, once it has ended."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run is dead, whatever its status: record it as failed."""

    run: Run
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """Request the run to end by itself; another one replaces it."""

    run: Run
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """A person launched the run: from now on it counts as one of the deployed version."""

    run: Run


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a run; the same key never launches two."""

    run_key: str


Decision: TypeAlias = Leave | GiveUp | End | Adopt | Launch

IN_PROGRESS: Final = (Status.WAITING, Status.STARTED, Status.ENDING)


@dataclass(frozen=True, slots=True)
class Watched:
    """
    One job to keep running, as it is now; `stream` is the tag's value on its runs.

    `runs` are its newest, newest first. `heartbeat` is the last one, `None` when none can be read
    here. `is_active` asks source or search cluster whether any process does the job's work, `None`
    when they do not answer; called only for a run whose heartbeat cannot be read here.
    `failure_reason` gives why a run failed.
    """

    job: str
    stream: str
    deployed: str
    runs: Sequence[Run]
    heartbeat: Heartbeat | None
    is_active: Callable[[], bool | None]
    failure_reason: Callable[[Run], str]


def decide(watched: Watched, now: float) -> Decision:
    """What to do about the job now; `now` in seconds of Unix time."""
    if current := [run for run in watched.runs if run.status in IN_PROGRESS]:
        return _in_progress(watched, current, now)
    if not watched.runs:
        return Launch(f"{watched.stream}-first")
    newest = watched.runs[0]
    if newest.status is Status.CANCELED:
        return Leave(f"{newest.shown} was terminated; launch '{watched.job}' to continue")
    failed = failures(watched.runs)
    left = newest.ended + wait_seconds(failed) - now
    if left > 0:
        return Leave(
            f"{newest.shown} failed, {failed} in a row; next try in {left:.0f} s;"
            f" {watched.failure_reason(newest)}"
        )
    return Launch(f"{watched.stream}-after-{newest.run_id}")


def _in_progress(watched: Watched, current: Sequence[Run], now: float) -> Decision:
    """What to do about runs in progress."""
    started = [run for run in current if run.status is Status.STARTED]
    for run in started:
        if reason := _why_dead(watched, run, now):
            return GiveUp(run, reason)
    for run in started:
        if not run.deployed:
            return Adopt(run)
        if run.deployed != watched.deployed:
            versions = f"{watched.deployed}, not {run.deployed}"
            return End(run, f"another version is deployed: {versions}")
    return Leave(_state(watched, current[0], now))


def failures(runs: Sequence[Run]) -> int:
    """How many of the newest runs failed in a row without having lived for long."""
    count = 0
    for run in runs:
        if run.status is not Status.FAILED:
            break
        if run.lived > LASTING_SECONDS:
            return max(count, 1)
        count += 1
    return count


def wait_seconds(failed: int) -> float:
    """How long to wait after this many failures in a row: 0, 10, 20, 40 ... 300."""
    if failed < 2:
        return 0.0
    return min(FIRST_WAIT_SECONDS * 2.0 ** min(failed - 2, 10), LONGEST_WAIT_SECONDS)


def _why_dead(watched: Watched, run: Run, now: float) -> str | None:
    """Why a run with status "started" is dead; `None`: it lives, or that is not known."""
    heartbeat = watched.heartbeat
    if heartbeat is not None and heartbeat.at >= run.began:
        if heartbeat.is_gone:
            return f"its process {heartbeat.pid} on {heartbeat.host} is gone"
        silent = now - heartbeat.at
        return f"no heartbeat for {silent:.0f} s" if silent > SILENT_SECONDS else None
    silent = now - run.began
    if silent <= STARTING_SECONDS or watched.is_active() is not False:
        return None
    return f"no heartbeat since it began {silent:.0f} s ago, and no process does its work"


def _state(watched: Watched, run: Run, now: float) -> str:
    status, heartbeat = f"{run.shown} is {run.status.value}", watched.heartbeat
    if heartbeat is None or heartbeat.at < run.began:
        return status
    reason = f": {heartbeat.reason}" if heartbeat.reason else ""
    return f"{status}, {heartbeat.state} {max(now - heartbeat.at, 0):.0f} s ago{reason}"
