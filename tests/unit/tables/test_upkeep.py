"""Which folders of a lake are typed tables."""

from __future__ import annotations

from pathlib import Path

from pgstream_dagster.delta.entries import LOG_FOLDER, entry_name
from pgstream_dagster.tables.upkeep import table_names


def test_a_table_whose_making_ended_before_its_first_version_is_none(tmp_path: Path) -> None:
    for name in ("made", "begun"):
        (tmp_path / name / LOG_FOLDER).mkdir(parents=True)
    (tmp_path / "made" / LOG_FOLDER / entry_name(0)).touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert table_names(f"file:{tmp_path}") == ["made"]
    assert table_names(f"file:{tmp_path}/none") == []
