"""Which folders of a lake are typed tables."""

from __future__ import annotations

import shutil
from pathlib import Path

from pgstream_dagster.delta.entries import LOG_FOLDER, entry_name
from pgstream_dagster.tables.building import FOLDER, beside, remove_unfinished
from pgstream_dagster.tables.upkeep import table_names


def test_a_table_whose_making_ended_before_its_first_version_is_none(tmp_path: Path) -> None:
    for name in ("made", "begun"):
        (tmp_path / name / LOG_FOLDER).mkdir(parents=True)
    (tmp_path / "made" / LOG_FOLDER / entry_name(0)).touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert table_names(f"file:{tmp_path}") == ["made"]
    assert table_names(f"file:{tmp_path}/none") == []


def test_what_is_built_beside_the_tables_is_none_and_is_removed(tmp_path: Path) -> None:
    (tmp_path / "made" / LOG_FOLDER).mkdir(parents=True)
    (tmp_path / "made" / LOG_FOLDER / entry_name(0)).touch()
    with beside(tmp_path / "made") as building:
        assert (building / LOG_FOLDER / entry_name(0)).exists()
        assert table_names(f"file:{tmp_path}") == ["made"]
    assert not building.parent.exists()
    shutil.copytree(tmp_path / "made", tmp_path / FOLDER / "made" / "killed")
    remove_unfinished(f"file:{tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    remove_unfinished(f"file:{tmp_path}/none")
    remove_unfinished("s3a://bucket/tables")
