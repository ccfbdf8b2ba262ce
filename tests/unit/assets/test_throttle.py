"""How often a long run writes to Dagster's event log."""

from __future__ import annotations

from pgstream_dagster.assets.throttle import EventThrottle


def told(moves: dict[int, int], *, until: int, assets: int = 1) -> list[tuple[int, str]]:
    """What a run tells of one asset that looks every 5 s; `moves`: the mark from that second on."""
    pace, mark, events = EventThrottle(0, assets), 0, []
    for now in range(0, until + 1, 5):
        mark = moves.get(now, mark)
        if (event := pace.due(now, mark)) is not None:
            events.append((now, event))
    return events


def test_moving_watermark_is_told_at_once_and_then_every_minute():
    moves = {now: now for now in range(0, 201, 5)}
    assert told(moves, until=200) == [
        (5, "materialization"),
        (65, "materialization"),
        (125, "materialization"),
        (185, "materialization"),
    ]


def test_commit_before_the_first_look_is_told():
    assert told({0: 1}, until=60) == [(0, "materialization")]


def test_standing_watermark_is_observed_every_five_minutes():
    assert told({}, until=650) == [(300, "observation"), (600, "observation")]


def test_standing_watermark_is_materialized_every_hour_so_that_it_counts_as_fresh():
    events = told({}, until=7300)
    assert [at for at, event in events if event == "materialization"] == [3600, 7200]


def test_first_move_after_a_quiet_time_is_told_at_once():
    assert told({0: 1, 100: 2}, until=150) == [(0, "materialization"), (100, "materialization")]


def test_move_soon_after_an_event_waits_for_its_interval():
    assert told({40: 1, 45: 2}, until=120) == [(40, "materialization"), (100, "materialization")]


def test_many_assets_write_no_more_than_one():
    moves = {now: now for now in range(5, 601, 5)}
    of_one = len(told(moves, until=600))
    assert of_one == 10
    assert 5 * len(told(moves, until=600, assets=5)) == of_one


def test_mark_that_goes_back_is_news():
    assert told({0: 5, 40: 4}, until=80) == [(0, "materialization"), (60, "materialization")]
