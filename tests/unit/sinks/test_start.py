"""Where a sink continues, by what target and lake have stored, and by what people ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.errors import LogBehind, OtherLog, ProgressMissing
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers.change import Place
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks.start import Start
from pgstream_dagster.sinks.state import Request

WATERMARK = Lsn(1_000)
POINT = Lsn(400)
LOST = [(Lsn(700), Lsn(800))]


def opened(log_id: str = "ours") -> OpenPipeline:
    """A pipeline of which one table is copied."""
    stand_in = SimpleNamespace(
        log_id=log_id,
        epoch=1,
        watermark=lambda: WATERMARK,
        require_watermark=lambda: WATERMARK,
        copied_relations=lambda: {16_400: (POINT, [])},
        copies_at=lambda position: {16_400: POINT} if position >= POINT else {},
        ledger=SimpleNamespace(lost=lambda epoch: LOST if epoch == 1 else []),
        pipeline=SimpleNamespace(lake=SimpleNamespace(root="/lake"), jvm=None),
    )
    return cast("OpenPipeline", stand_in)


@pytest.fixture(autouse=True)
def no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgstream_dagster.sinks.start.jvm.spark", lambda _: None)
    monkeypatch.setattr("pgstream_dagster.sinks.start.open_gaps", lambda *_: {})


def start(stored: Cursor | None = None, **request: Any) -> Start:
    config = SinkConfig.model_validate({"stdout": {}})
    return Start(opened(), "out", Request(**request), config, stored)


def at(watermark: int, generation: int = 1, log: str = "ours") -> Cursor:
    return Cursor(generation, 1, watermark, copies={16_400: 400}, log=log)


BEGUN = Cursor(1, 1, 400, log="ours")


def test_the_first_start_is_at_the_oldest_copy() -> None:
    assert start().cursor(None) == BEGUN


def test_the_progress_of_the_target_goes_over_that_of_the_lake() -> None:
    assert start(at(500)).cursor(at(600).to_json()) == at(600)
    assert start(at(500)).cursor(None) == at(500)


def test_a_reset_begins_again_with_markers_and_leaves_the_progress_of_the_target() -> None:
    begun = start(at(500), generation=2, start="copy").cursor(at(600).to_json())
    assert begun == Cursor(2, 1, 400, is_restarted=True, log="ours")


def test_a_reset_whose_start_is_stored_does_not_begin_again() -> None:
    moved = start(at(450, generation=2), generation=2, start="copy")
    assert moved.cursor(at(600).to_json()) == at(450, generation=2)
    assert moved.cursor(at(470, generation=2).to_json()) == at(470, generation=2)


def test_progress_of_another_log_is_refused_and_says_what_both_are() -> None:
    kept = at(600, log="theirs").to_json()
    for refused in (start(), start(at(500)), start(at(500, generation=2), generation=2)):
        with pytest.raises(OtherLog) as raised:
            refused.cursor(kept)
        with pytest.raises(OtherLog):
            refused.leaves_log(kept)
        for fact in ("theirs", str(Lsn(600)), "ours", str(WATERMARK), "/lake"):
            assert fact in str(raised.value)
        assert "'pgstream sink reset out --from start'" in str(raised.value)


def test_progress_in_a_lake_whose_log_was_made_again_is_refused() -> None:
    with pytest.raises(OtherLog):
        start(at(500, log="theirs")).cursor(None)


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_a_reset_leaves_another_log_whatever_its_generation(generation: int) -> None:
    kept = at(600, generation, log="theirs").to_json()
    reset = start(generation=2, start="copy")
    assert reset.leaves_log(kept)
    assert reset.cursor(kept) == Cursor(2, 1, 400, is_restarted=True, log="ours")


def test_progress_from_before_logs_had_names_is_of_this_log_and_says_so_now() -> None:
    begun = start()
    kept = at(600, log="").to_json()
    assert not begun.leaves_log(kept)
    assert begun.cursor(kept) == at(600)
    assert begun.replaces(kept)
    assert not begun.replaces(at(600).to_json())
    assert not begun.replaces(None)


def test_a_lake_that_was_restored_without_the_resets_goes_on_where_the_target_is() -> None:
    assert start().cursor(at(600, generation=3).to_json()) == at(600)
    reset = start(at(600), generation=2, start="copy")
    assert reset.cursor(at(700, generation=3).to_json()).watermark == POINT


AHEAD = {
    "past the end of the log": Cursor(1, 1, Lsn(1_001), log="ours"),
    "within a transaction past its end": Cursor(
        1, 1, Lsn(900), place=Place(Lsn(1_000), 3), log="ours"
    ),
    "in a later epoch": Cursor(1, 2, Lsn(50), log="ours"),
    "in a part that the log lacks": Cursor(1, 1, Lsn(750), log="ours"),
    "within a transaction of such a part": Cursor(
        1, 1, Lsn(700), place=Place(Lsn(720), 0), log="ours"
    ),
}


@pytest.mark.parametrize("kept", AHEAD.values(), ids=AHEAD)
def test_progress_that_a_restored_log_does_not_have_is_refused_until_a_reset(kept: Cursor) -> None:
    for refused in (start(), start(at(500)), start(kept)):
        with pytest.raises(LogBehind) as raised:
            refused.cursor(kept.to_json())
        with pytest.raises(LogBehind):
            refused.leaves_log(kept.to_json())
    with pytest.raises(LogBehind):
        start(kept).cursor(None)
    reaches = LOST[0] if kept.end < WATERMARK and kept.epoch == 1 else (WATERMARK,)
    for fact in (f"epoch {kept.epoch} up to {kept.end}", *map(str, reaches)):
        assert fact in str(raised.value)
    assert "'pgstream sink reset out --from start'" in str(raised.value)
    reset = start(at(500), generation=2, start="copy")
    assert reset.leaves_log(kept.to_json()) == (kept.epoch == 2)
    assert reset.cursor(kept.to_json()) == Cursor(2, 1, 400, is_restarted=True, log="ours")


@pytest.mark.parametrize("watermark", [700, 800, 1_000])
def test_progress_at_the_ends_of_what_the_log_has_goes_on(watermark: int) -> None:
    assert start().cursor(at(watermark).to_json()) == at(watermark)


def test_progress_of_a_former_epoch_that_is_ahead_begins_again(monkeypatch) -> None:
    former = Cursor(1, 0, 5_000, log="ours")
    monkeypatch.setattr("pgstream_dagster.sinks.start._is_at_end", lambda *_: True)
    assert start().cursor(former.to_json()) == Cursor(1, 1, 400, is_restarted=True, log="ours")


def test_a_chosen_position_in_a_part_that_the_log_lacks_is_where_that_begins() -> None:
    begun = start(at(500), generation=2, start=str(Lsn(750))).cursor(None)
    assert begun.watermark == 700
    moved = start(begun, generation=2, start=str(Lsn(750)))
    assert moved.cursor(None).watermark == 700


def test_a_target_that_lost_the_progress_of_a_delivered_copy_is_named() -> None:
    start(BEGUN).require_kept(None)  # a first transaction that was rolled back
    start(None).require_kept(None)
    start(at(500)).require_kept(at(450).to_json())
    start(at(500), generation=2).require_kept(None)  # reset
    with pytest.raises(ProgressMissing, match=r"up to 500.* --from start'"):
        start(at(500)).require_kept(None)
