"""The page of the command line is written from the commands."""

from __future__ import annotations

from pathlib import Path

from pgstream_dagster.cli.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"


def test_the_page_says_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "write it again: python -c 'from pgstream_dagster.cli.reference import reference;"
        f' print(reference(), end="")\' > {PAGE.name}'
    )
