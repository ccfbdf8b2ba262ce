"""What is done about a long run, from its runs and its heartbeat alone."""

from __future__ import annotations

import pytest

from pgstream_dagster.heartbeat import Heartbeat
from pgstream_dagster.process_identity import this_process
from pgstream_dagster.supervision import (
    LASTING_SECONDS,
    LONGEST_WAIT_SECONDS,
    SILENT_SECONDS,
    STARTING_SECONDS,
    Adopt,
    End,
    GiveUp,
    Launch,
    Leave,
    Run,
    Status,
    Watched,
    decide,
    failures,
    wait_seconds,
)

NOW = 1_000_000.0
NO_PROCESS = 2**22 + 1  # above the largest that Linux gives out


def run(status: Status, *, began: float = NOW - 60, ended: float = NOW, name: str = "a") -> Run:
    return Run(name * 36, status, began, ended, "1")


def heartbeat(ago: float = 0.0, *, is_gone: bool = False, is_elsewhere: bool = False, reason=None):
    state = "reconnecting" if reason else "streaming"
    place, pid, start = this_process().rsplit(":", 2)
    place, pid = "elsewhere" if is_elsewhere else place, str(NO_PROCESS) if is_gone else pid
    return Heartbeat(state, reason, int(pid), "host", f"{place}:{pid}:{start}", NOW - ago, {})


def watched(*runs: Run, beat: Heartbeat | None = None, is_active: bool | None = None, deployed="1"):
    def reason(failed: Run) -> str:
        return f"why {failed.run_id[:8]}"

    return Watched("stream", "shop/stream", deployed, runs, beat, lambda: is_active, reason)


def test_first_run_is_asked_for():
    assert decide(watched(), NOW) == Launch("shop/stream-first")


@pytest.mark.parametrize("status", [Status.WAITING, Status.ENDING, Status.STARTED])
def test_run_in_progress_is_left_alone(status):
    decided = decide(watched(run(status), beat=heartbeat()), NOW)
    assert decided == Leave(f"run aaaaaaaa is {status.value}, streaming 0 s ago")


def test_why_a_stream_reconnects_is_in_the_reason():
    decided = decide(watched(run(Status.STARTED), beat=heartbeat(3, reason="refused")), NOW)
    assert decided == Leave("run aaaaaaaa is started, reconnecting 3 s ago: refused")


def test_silent_run_is_given_up():
    started = run(Status.STARTED, began=NOW - 900)
    silent = heartbeat(SILENT_SECONDS + 1, is_elsewhere=True, is_gone=True)
    decided = decide(watched(started, beat=silent), NOW)
    assert decided == GiveUp(started, "no heartbeat for 121 s")
    recent = heartbeat(SILENT_SECONDS - 1, is_elsewhere=True, is_gone=True)
    assert isinstance(decide(watched(started, beat=recent), NOW), Leave)


def test_run_whose_process_is_gone_is_given_up_at_once():
    started = run(Status.STARTED)
    decided = decide(watched(started, beat=heartbeat(1, is_gone=True)), NOW)
    assert decided == GiveUp(started, f"its process {NO_PROCESS} on host is gone")


def test_heartbeat_of_the_run_before_does_not_count_for_this_one():
    started = run(Status.STARTED, began=NOW - 5)
    assert isinstance(decide(watched(started, beat=heartbeat(6, is_gone=True)), NOW), Leave)


@pytest.mark.parametrize(
    ("is_active", "dead"),
    [(False, True), (True, False), (None, False)],
    ids=["no", "yes", "unknown"],
)
def test_without_a_readable_heartbeat_its_work_decides(is_active, dead):
    """On another machine without a shared folder; unknown: the source does not answer."""
    started = run(Status.STARTED, began=NOW - STARTING_SECONDS - 1)
    assert isinstance(decide(watched(started, is_active=is_active), NOW), GiveUp) is dead


def test_source_is_not_queried_while_a_run_starts():
    started = run(Status.STARTED, began=NOW - STARTING_SECONDS + 1)
    assert isinstance(decide(watched(started, is_active=False), NOW), Leave)


def test_run_of_another_version_is_asked_to_end():
    started = run(Status.STARTED)
    decided = decide(watched(started, beat=heartbeat(), deployed="2"), NOW)
    assert decided == End(started, "another version is deployed: 2, not 1")


def test_run_that_a_person_launched_is_adopted():
    started = Run("a" * 36, Status.STARTED, NOW - 60, NOW - 60, "")
    assert decide(watched(started, beat=heartbeat()), NOW) == Adopt(started)


def test_queued_run_of_another_version_is_left_alone():
    assert isinstance(decide(watched(run(Status.WAITING), deployed="2"), NOW), Leave)


def test_terminated_run_stays_down_until_asked_for():
    decided = decide(watched(run(Status.CANCELED), run(Status.FAILED)), NOW + 1e6)
    assert decided == Leave("run aaaaaaaa was terminated; launch 'stream' to continue")


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED])
def test_ended_run_is_replaced_at_once(status):
    assert decide(watched(run(status)), NOW) == Launch(f"shop/stream-after-{'a' * 36}")


def test_repeated_failure_backs_off_and_says_why():
    failed = [run(Status.FAILED, name=name) for name in "cba"]
    assert decide(watched(*failed), NOW + 5) == Leave(
        "run cccccccc failed, 3 in a row; next try in 15 s; why cccccccc"
    )
    assert decide(watched(*failed), NOW + 20) == Launch(f"shop/stream-after-{'c' * 36}")


def test_waits_grow_to_five_minutes():
    assert [wait_seconds(n) for n in range(9)] == [0, 0, 10, 20, 40, 80, 160, 300, 300]
    assert wait_seconds(10_000) == LONGEST_WAIT_SECONDS


def test_run_that_lasted_ends_the_row_of_failures():
    short = run(Status.FAILED)
    long = run(Status.FAILED, began=NOW - LASTING_SECONDS - 1)
    assert failures([short, short, run(Status.SUCCEEDED), short]) == 2
    assert failures([short, long, short]) == 1
    assert failures([long, short, short]) == 1
    assert failures([run(Status.CANCELED), short]) == 0
