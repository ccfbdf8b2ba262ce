"""Whose state folder it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import PipelineConfig
from pgstream_dagster.delta.jvm import JvmSettings
from pgstream_dagster.errors import StateTaken
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.state_folder import claim, require_own


def pipeline(folder: Path, lake: str, name: str = "shop") -> Pipeline:
    config = PipelineConfig(pipeline=name)
    return Pipeline(config, "", Lake(str(folder / lake)), JvmSettings(), folder / "state")


def test_second_pipeline_of_one_name_is_refused_by_name(tmp_path: Path) -> None:
    first, second = pipeline(tmp_path, "lake"), pipeline(tmp_path, "other")
    claim(first)
    claim(first)
    with pytest.raises(StateTaken, match="PGSTREAM_STATE") as taken:
        claim(second)
    assert (taken.value.owner, taken.value.lake) == (
        f"file:{first.lake.root}",
        f"file:{second.lake.root}",
    )
    with pytest.raises(StateTaken):
        require_own(second)
    require_own(first)


def test_pipelines_of_other_names_share_a_folder(tmp_path: Path) -> None:
    claim(pipeline(tmp_path, "lake"))
    claim(pipeline(tmp_path, "other", "crm"))


def test_removing_the_named_file_gives_the_folder_to_a_moved_lake(tmp_path: Path) -> None:
    claim(pipeline(tmp_path, "lake"))
    moved = pipeline(tmp_path, "moved")
    with pytest.raises(StateTaken) as taken:
        claim(moved)
    Path(taken.value.file).unlink()
    claim(moved)
    require_own(moved)


def test_torn_owner_file_is_written_again(tmp_path: Path) -> None:
    first = pipeline(tmp_path, "lake")
    claim(first)
    [file] = first.state.iterdir()
    file.write_bytes(b"")
    claim(first)
    assert file.read_text() == f"file:{first.lake.root}"
    assert list(first.state.iterdir()) == [file]


def test_folder_that_cannot_be_written_does_not_stop_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    claim(pipeline(tmp_path, "lake"))
