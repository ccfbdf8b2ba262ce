"""How often a long run writes to Dagster's event log."""

from __future__ import annotations

from dagster import AssetMaterialization, AssetObservation

from pgstream_dagster.assets.throttle import Event, EventThrottle


def events(moves: dict[int, int], *, until: int, assets: int = 1) -> list[tuple[int, Event]]:
    """What a run that polls every 5 s reports of one asset; `moves`: the mark from then on."""
    throttle, mark, due = EventThrottle(0, assets), 0, []
    for now in range(0, until + 1, 5):
        mark = moves.get(now, mark)
        if (event := throttle.due(now, mark)) is not None:
            due.append((now, event))
    return due


def test_moving_watermark_is_reported_at_once_and_then_every_minute():
    moves = {now: now for now in range(0, 201, 5)}
    assert events(moves, until=200) == [
        (5, AssetMaterialization),
        (65, AssetMaterialization),
        (125, AssetMaterialization),
        (185, AssetMaterialization),
    ]


def test_commit_before_the_first_poll_is_reported():
    assert events({0: 1}, until=60) == [(0, AssetMaterialization)]


def test_standing_watermark_is_observed_every_five_minutes():
    assert events({}, until=650) == [(300, AssetObservation), (600, AssetObservation)]


def test_standing_watermark_is_materialized_every_hour_so_that_it_counts_as_fresh():
    assert [at for at, event in events({}, until=7300) if event is AssetMaterialization] == [
        3600,
        7200,
    ]


def test_first_move_after_a_quiet_time_is_reported_at_once():
    assert events({0: 1, 100: 2}, until=150) == [
        (0, AssetMaterialization),
        (100, AssetMaterialization),
    ]


def test_move_soon_after_an_event_waits_for_its_interval():
    assert events({40: 1, 45: 2}, until=120) == [
        (40, AssetMaterialization),
        (100, AssetMaterialization),
    ]


def test_many_assets_write_no_more_than_one():
    moves = {now: now for now in range(5, 601, 5)}
    single = len(events(moves, until=600))
    assert single == 10
    assert 5 * len(events(moves, until=600, assets=5)) == single


def test_mark_that_goes_back_is_new():
    assert events({0: 5, 40: 4}, until=80) == [
        (0, AssetMaterialization),
        (60, AssetMaterialization),
    ]
