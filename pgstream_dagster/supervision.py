"""
What a sensor does about a long run (`stream`, `index`): leave it, end it, give it up, ask for one.

Pure: runs, heartbeat and time in, one decision out. A run's status proves nothing (after a host
crash it says "started" for ever), so whether it runs is judged by its own heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from pgstream_dagster.heartbeat import Heartbeat

SILENT_SECONDS: Final = 120.0
"""Without a heartbeat: longer than the pauses between attempts to reconnect, a commit to a slow
store, or a request to a search cluster that does not answer."""

STARTING_SECONDS: Final = 300.0
"""The same for a run that has given none yet: imports and a JVM start in 20 s, or in minutes."""

FIRST_WAIT_SECONDS: Final = 10.0
LONGEST_WAIT_SECONDS: Final = 300.0
"""Between runs that fail one after the other; after a single failure there is no wait."""

LASTING_SECONDS: Final = 600.0
"""A run that lived for longer was no attempt that failed: what ended it is something new."""


class Status(Enum):
    """What counts of a run's status."""

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

    `deployed` is what it was started from, empty where a person launched it.
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
        """For how long, once it has ended."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run is dead whatever its status says: record it as failed."""

    run: Run
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """Ask the run to end by itself: another one shall take its place."""

    run: Run
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """A person launched the run: from now on it counts as one of what is deployed now."""

    run: Run


@dataclass(frozen=True, slots=True)
class Launch:
    """Ask for a run; the same key never makes two."""

    run_key: str


Decision: TypeAlias = Leave | GiveUp | End | Adopt | Launch

IN_PROGRESS: Final = (Status.WAITING, Status.STARTED, Status.ENDING)


@dataclass(frozen=True, slots=True)
class Watched:
    """
    One job that shall always run, as it is now; `stream` is the tag's value on its runs.

    `runs` are its newest, newest first. `sign`: what it last said, `None` when it has said nothing
    that can be read here. `is_done`: whether somebody does its work, as source or search cluster
    see it, `None` when it is not known; asked only about a run whose sign cannot be read here.
    `why`: why a run failed.
    """

    job: str
    stream: str
    deployed: str
    runs: Sequence[Run]
    sign: Heartbeat | None
    is_done: Callable[[], bool | None]
    why: Callable[[Run], str]


def decide(watched: Watched, now: float) -> Decision:
    """What to do about the job now; `now` in seconds of Unix time."""
    if going := [run for run in watched.runs if run.status in IN_PROGRESS]:
        return _about(watched, going, now)
    if not watched.runs:
        return Launch(f"{watched.stream}-first")
    newest = watched.runs[0]
    if newest.status is Status.CANCELED:
        return Leave(f"{newest.shown} was terminated; launch '{watched.job}' to go on")
    failed = failures(watched.runs)
    wait = wait_seconds(failed)
    left = newest.ended + wait - now
    if left > 0:
        return Leave(
            f"{newest.shown} failed, {failed} in a row; next try in {left:.0f} s;"
            f" {watched.why(newest)}"
        )
    return Launch(f"{watched.stream}-after-{newest.run_id}")


def _about(watched: Watched, going: Sequence[Run], now: float) -> Decision:
    """What to do about runs in progress."""
    started = [run for run in going if run.status is Status.STARTED]
    for run in started:
        if reason := _dead(watched, run, now):
            return GiveUp(run, reason)
    for run in started:
        if not run.deployed:
            return Adopt(run)
        if run.deployed != watched.deployed:
            said = f"another version is deployed: {watched.deployed}, not {run.deployed}"
            return End(run, said)
    return Leave(_going(watched, going[0], now))


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
    """How long to wait after the last of so many failures: 0, 10, 20, 40 ... 300."""
    if failed < 2:
        return 0.0
    return min(FIRST_WAIT_SECONDS * 2.0 ** min(failed - 2, 10), LONGEST_WAIT_SECONDS)


def _dead(watched: Watched, run: Run, now: float) -> str | None:
    """Why a run that counts as started is none; `None`: it lives, or that is not known."""
    sign = watched.sign
    if sign is not None and sign.at >= run.began:
        if sign.is_gone:
            return f"its process {sign.pid} on {sign.host} is gone"
        silent = now - sign.at
        return f"no heartbeat for {silent:.0f} s" if silent > SILENT_SECONDS else None
    silent = now - run.began
    if silent <= STARTING_SECONDS or watched.is_done() is not False:
        return None
    return f"no heartbeat since it began {silent:.0f} s ago, and no process does its work"


def _going(watched: Watched, run: Run, now: float) -> str:
    said = f"{run.shown} is {run.status.value}"
    sign = watched.sign
    if sign is None or sign.at < run.began:
        return said
    reason = f": {sign.reason}" if sign.reason else ""
    return f"{said}, {sign.state} {max(now - sign.at, 0):.0f} s ago{reason}"
