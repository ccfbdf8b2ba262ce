"""Where a sink goes on, by what its target keeps, what the lake has stored and what people ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.errors import OtherLog
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks.start import Start
from pgstream_dagster.sinks.state import Request

WATERMARK = Lsn(1_000)
POINT = Lsn(400)


def opened(log_id: str = "ours") -> OpenPipeline:
    """A pipeline of which one table is copied."""
    stand_in = SimpleNamespace(
        log_id=log_id,
        epoch=1,
        watermark=lambda: WATERMARK,
        require_watermark=lambda: WATERMARK,
        copied_relations=lambda: {16_400: (POINT, [])},
        pipeline=SimpleNamespace(lake=SimpleNamespace(root="/lake")),
    )
    return cast("OpenPipeline", stand_in)


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
