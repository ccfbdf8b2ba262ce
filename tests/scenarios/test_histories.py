"""Ten random histories; `make histories COUNT=500` plays more."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.harness import histories, play
from tests.support.plugins.cluster import MAJORS

FIRST = os.environ.get("PGSTREAM_TEST_SEED")

DIFFERENT = (1, 2, 3, 5, 12, 13, 14, 16, 17, 19)
"""Of the first twenty those that differ most: nine tenths of their kinds of statements."""

SEEDS = DIFFERENT if FIRST is None else range(int(FIRST), int(FIRST) + len(DIFFERENT))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[play.Player]:
    """One server for all of them: of the oldest major, or of that which the run asks for."""
    with play.Player(min(MAJORS), tmp_path_factory.mktemp("histories")) as player:
        yield player


@pytest.mark.parametrize("seed", SEEDS)
def test_log_is_the_source_and_the_second_slot_after_history(
    player: play.Player, seed: int
) -> None:
    try:
        player.play(seed)
    except AssertionError as error:
        pytest.fail(play.failure(seed, player.major, error), pytrace=False)


def test_a_seed_always_makes_the_same_history() -> None:
    once, again = histories.show(histories.history(7)), histories.show(histories.history(7))
    assert once == again != histories.show(histories.history(8))
