"""How often a long run writes to Dagster's event log."""

from __future__ import annotations

from pgstream_dagster.assets.pace import Pace


def told(moves: dict[int, int], *, until: int) -> list[tuple[int, str]]:
    """What a run tells that looks every 5 s; `moves`: from that second on, so many commits."""
    pace, commits, events = Pace(told_at=0), 0, []
    for now in range(0, until + 1, 5):
        commits = moves.get(now, commits)
        if (event := pace.due(now, commits)) is not None:
            events.append((now, event))
    return events


def test_moving_watermark_is_told_every_thirty_seconds():
    moves = {now: now for now in range(0, 101, 5)}
    assert told(moves, until=100) == [
        (30, "materialization"),
        (60, "materialization"),
        (90, "materialization"),
    ]


def test_commit_before_the_first_look_is_told():
    assert told({0: 1}, until=60) == [(30, "materialization")]


def test_standing_watermark_is_observed_every_five_minutes():
    assert told({}, until=650) == [(300, "observation"), (600, "observation")]


def test_first_move_after_a_quiet_time_is_told_at_once():
    assert told({100: 1}, until=150) == [(100, "materialization")]


def test_move_soon_after_an_event_waits_for_its_interval():
    assert told({40: 1, 45: 2}, until=100) == [(40, "materialization"), (70, "materialization")]
