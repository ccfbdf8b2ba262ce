"""Which files are rewritten together, and which log files are kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.changelog import optimize
from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import LOG_FOLDER, AddedFile, checksum_name, entry_name

TARGET = 1_000
DAY = 86_400


def file(number: int, size: int, lsn: int = 0) -> AddedFile:
    return AddedFile(f"{number}.parquet", size, json.dumps({"minValues": {"commit_lsn": lsn}}))


@given(st.lists(st.tuples(st.integers(1, 2 * TARGET), st.integers(0, 99)), max_size=60))
def test_steps_take_small_files_once_in_the_order_of_their_changes(sizes: list[tuple[int, int]]):
    files = [file(n, size, lsn) for n, (size, lsn) in enumerate(sizes)]
    taken = [file for step in optimize.steps(files, TARGET) for file in step]
    assert len({file.name for file in taken}) == len(taken)
    assert all(file.size < TARGET / 2 for file in taken)
    lsns = [json.loads(file.stats_json)["minValues"]["commit_lsn"] for file in taken]
    assert lsns == sorted(lsns)


def test_few_small_files_are_not_worth_a_rewrite():
    few = [file(n, 10) for n in range(optimize.WORTH_FILES - 1)]
    assert optimize.steps(few, TARGET) == []
    assert len(optimize.steps([*few, file(99, 10)], TARGET)) == 1


def test_steps_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(optimize, "STEP_FILES", 10)
    monkeypatch.setattr(optimize, "STEP_BYTES", 200)
    assert [len(s) for s in optimize.steps([file(n, 1) for n in range(25)], TARGET)] == [10, 10]
    assert [len(s) for s in optimize.steps([file(n, 25) for n in range(16)], TARGET)] == [8, 8]


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Versions 0-20 with checkpoints at 5, 10 and 15; the newer a version the younger."""
    log = tmp_path / LOG_FOLDER
    log.mkdir()
    for version in range(21):
        paths = [log / entry_name(version), log / checksum_name(version)]
        if version in (5, 10, 15):
            paths.append(log / f"{version:020d}.checkpoint.parquet")
            pq.write_table(pa.table({"a": [1]}), paths[-1])
        for path in paths:
            if path.suffix != ".parquet":
                path.write_text("{}\n")
            os.utime(path, (version * DAY, version * DAY))
    (log / "_last_checkpoint").write_text('{"version":15}')
    (log / ".commit.lock").touch()
    return uri.absolute(tmp_path)


def kept(table: str) -> list[int]:
    path = uri.local(table)
    assert path is not None
    return sorted(int(p.stem) for p in (path / LOG_FOLDER).glob("*.json"))


def test_entries_older_than_an_old_checkpoint_go(table: str):
    """At day 42 the checkpoint of day 10 is older than the retention, that of day 15 is not."""
    assert optimize.clean_log(table, now=42 * DAY) == 10 + 10 + 1
    assert kept(table) == list(range(10, 21))
    assert optimize.clean_log(table, now=42 * DAY) == 0


def test_a_young_log_is_kept(table: str):
    assert optimize.clean_log(table, now=30 * DAY) == 0
    assert kept(table) == list(range(21))


def test_a_checkpoint_that_cannot_be_read_is_not_relied_on(table: str):
    path = uri.local(table)
    assert path is not None
    torn = path / LOG_FOLDER / f"{10:020d}.checkpoint.parquet"
    torn.write_bytes(b"PAR1")
    os.utime(torn, (10 * DAY, 10 * DAY))
    optimize.clean_log(table, now=42 * DAY)
    assert kept(table) == list(range(5, 21))


def test_what_killed_writers_left_goes_after_a_day(table: str):
    path = uri.local(table)
    assert path is not None
    left = path / LOG_FOLDER / f".{entry_name(21)}.0a1b.tmp"
    left.touch()
    os.utime(left, (20 * DAY, 20 * DAY))
    optimize.clean_log(table, now=20.5 * DAY)
    assert left.exists()
    optimize.clean_log(table, now=21.5 * DAY)
    assert not left.exists()
