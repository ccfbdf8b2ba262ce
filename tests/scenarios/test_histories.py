"""Two random histories, twenty with `make test-all`; `make histories COUNT=500` plays more."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.harness import histories, play
from tests.support.plugins.cluster import ALL, MAJORS

FIRST = int(os.environ.get("PGSTREAM_TEST_SEED", "1"))

SEEDS = range(FIRST, FIRST + (20 if ALL else 2))

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
