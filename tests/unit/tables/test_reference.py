"""The page of the types of typed tables; `tests/lake/test_table_types.py` runs its examples."""

from __future__ import annotations

from pathlib import Path

from pgstream_dagster.tables.reference import reference
from pgstream_dagster.values.types import TYPES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "table-types.md"


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "write it again: make docs"


def test_the_page_names_every_type() -> None:
    text = reference()
    assert not [name for name in TYPES if f"`{name}`" not in text]
    assert "None" not in text
