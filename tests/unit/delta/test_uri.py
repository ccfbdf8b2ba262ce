"""Every table and file has one name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.delta import uri


@pytest.mark.parametrize(
    "root", ["/data/lake", "/data/lake/", "file:/data/lake", "file:///data/lake"]
)
def test_all_spellings_of_a_local_lake_are_one_address(root: str):
    assert Lake(root).change_log == "file:/data/lake/change_log"


def test_a_relative_lake_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert Lake("lake").ledger == f"file:{tmp_path}/lake/ledger"


def test_an_object_store_keeps_its_scheme():
    assert Lake("s3a://bucket/lake/").schema_log == "s3a://bucket/lake/schema_log"
    assert uri.local("s3a://bucket/lake") is None


def test_the_log_names_files_relative_to_their_table():
    table = Lake("/data/my lake").change_log
    file = uri.child(table, "a b.parquet")
    assert uri.name_in(table, file) == "a b.parquet"
    assert uri.local(file) == Path("/data/my lake/change_log/a b.parquet")


@pytest.mark.parametrize(
    "file", ["/data/lake/change_log/a.parquet", "file:/data/lake/change_log2/a"]
)
def test_a_file_that_the_log_would_name_otherwise_is_refused(file: str):
    with pytest.raises(ValueError, match="is not in the table"):
        uri.name_in("file:/data/lake/change_log", file)
