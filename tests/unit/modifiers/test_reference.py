"""The page of the transformers is what the code says."""

from __future__ import annotations

from pathlib import Path

from pgstream_dagster.modifiers.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "transformers.md"


def test_the_page_says_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "write it again: make docs"
