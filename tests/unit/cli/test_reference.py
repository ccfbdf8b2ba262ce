"""The page of the command line is generated from the commands."""

from __future__ import annotations

from pathlib import Path

from pgstream_dagster.cli.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"


def test_page_is_what_the_code_generates():
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "generate it again: python -c 'from pgstream_dagster.cli.reference import reference;"
        f' print(reference(), end="")\' > {PAGE.name}'
    )
