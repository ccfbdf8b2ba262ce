"""How often a long run writes to Dagster's event log."""

from __future__ import annotations

from pgstream_dagster.assets.pace import Pace


def told(moves: dict[int, int], *, until: int, assets: int = 1) -> list[tuple[int, str]]:
    """What a run tells of one asset that looks every 5 s; `moves`: the mark from that second on."""
    pace, mark, events = Pace(told_at=0, assets=assets), 0, []
    for now in range(0, until + 1, 5):
        mark = moves.get(now, mark)
        if (event := pace.due(now, mark)) is not None:
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


def test_many_assets_write_no_more_than_one():
    moves = {now: now for now in range(0, 301, 5)}
    of_one = len(told(moves, until=300))
    assert of_one == 10
    assert 5 * len(told(moves, until=300, assets=5)) == of_one


def test_mark_that_goes_back_is_news():
    assert told({0: 5, 40: 4}, until=60) == [(30, "materialization"), (60, "materialization")]
