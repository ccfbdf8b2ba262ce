"""The page of what each command does is written from what a test observes."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.ddl_effects import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ddl-effects.md"


def test_page_is_what_the_commands_do() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make docs"
