"""The page of faults is written from the scenarios that play them."""

from __future__ import annotations

from pathlib import Path

from tests.faults.page import page
from tests.faults.scenarios import SCENARIOS

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "what-happens-when.md"


def test_page_is_what_the_scenarios_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make docs"


def test_every_scenario_has_a_name_and_says_what_is_expected() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert all(scenario.expected.endswith(".") for scenario in SCENARIOS)
