"""The statements: one per file, each with a header, none sent with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgstream_dagster import sql

FOLDER = Path(sql.__file__).parent
NAMES = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.sql"))


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_has_a_header_that_names_its_parameters(name: str) -> None:
    text = (FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    body = sql.statement(name)
    header = text[: text.index(body)]
    assert header.startswith("-- ")
    assert not body.startswith("--")
    assert set(re.findall(r"%\((\w+)\)s", body)) == set(re.findall(r"%\((\w+)\)s", header))


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_with_parameters_doubles_every_other_percent_sign(name: str) -> None:
    body = sql.statement(name)
    if "%(" in body:
        assert "%" not in re.sub(r"%\(\w+\)s|%%", "", body)


def test_a_name_without_a_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        sql.statement("source/none")
