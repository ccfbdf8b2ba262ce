"""What a power cut leaves is repaired; what was confirmed and is damaged is said."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgstream_dagster.delta.entries import checksum_name, engine_info, entry_name
from pgstream_dagster.delta.recovery import aside, recover
from pgstream_dagster.errors import LogDamaged

ENTRY = (
    json.dumps({"commitInfo": {"engineInfo": engine_info(1)}})
    + "\n"
    + json.dumps({"txn": {"appId": "shop/1", "version": 3}})
    + "\n"
).encode()
TORN = {
    "empty": b"",
    "cut": ENTRY[:-20],
    "a line less": ENTRY.splitlines(keepends=True)[0],
    "zeros": bytes(80),
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Versions 0-4, each whole."""
    for version in range(5):
        (tmp_path / entry_name(version)).write_bytes(ENTRY)
        (tmp_path / checksum_name(version)).write_text("{}")
    return tmp_path


def versions(log: Path) -> list[int]:
    return sorted(int(path.stem) for path in log.glob("*.json"))


def checkpoint(log: Path, version: int, *, torn: bool = False) -> Path:
    path = log / f"{version:020d}.checkpoint.parquet"
    pq.write_table(pa.table({"add": list(range(5_000))}), path, compression="none")
    if torn:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
    (log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": 1}))
    return path


def test_a_whole_log_stays_as_it_is(log: Path):
    checkpoint(log, 3)
    before = sorted(path.name for path in log.iterdir())
    recover(log)
    recover(log)
    assert sorted(path.name for path in log.iterdir()) == before


@pytest.mark.parametrize("left", TORN.values(), ids=TORN.keys())
def test_a_torn_newest_entry_that_may_not_have_been_confirmed_is_set_aside(log: Path, left: bytes):
    (log / entry_name(4)).write_bytes(left)
    (log / checksum_name(4)).unlink()
    (log / f".{entry_name(4)}.crc").write_bytes(b"crc")
    for _ in range(2):
        recover(log)
        assert versions(log) == [0, 1, 2, 3]
        assert aside(log, 4).read_bytes() == left
    assert not (log / f".{entry_name(4)}.crc").exists()


@pytest.mark.parametrize("left", TORN.values(), ids=TORN.keys())
def test_a_torn_entry_that_was_confirmed_is_damage(log: Path, left: bytes):
    """Its checksum is written only after it was synced."""
    (log / entry_name(4)).write_bytes(left)
    for _ in range(2):
        with pytest.raises(LogDamaged, match="confirmed"):
            recover(log)
    assert versions(log) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("left", TORN.values(), ids=TORN.keys())
def test_a_torn_entry_that_is_not_the_newest_is_damage(log: Path, left: bytes):
    (log / entry_name(2)).write_bytes(left)
    with pytest.raises(LogDamaged, match="cut off"):
        recover(log)
    assert versions(log) == [0, 1, 2, 3, 4]


def test_two_torn_entries_are_damage_and_not_removed_one_by_one(log: Path):
    for version in (3, 4):
        (log / entry_name(version)).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(LogDamaged):
            recover(log)
    assert 3 in versions(log)


def test_a_missing_entry_is_damage(log: Path):
    (log / entry_name(2)).unlink()
    with pytest.raises(LogDamaged, match="missing"):
        recover(log)


def test_a_torn_checkpoint_is_removed_with_its_pointer(log: Path):
    torn = checkpoint(log, 3, torn=True)
    recover(log)
    assert not torn.exists()
    assert not (log / "_last_checkpoint").exists()
    assert versions(log) == [0, 1, 2, 3, 4]


def test_a_checkpoint_with_a_lost_block_is_removed(log: Path):
    path = checkpoint(log, 3)
    with path.open("r+b") as file:
        file.seek(4)
        file.write(bytes(4096))
    recover(log)
    assert not path.exists()


def test_a_torn_checkpoint_falls_back_to_the_one_before(log: Path):
    older = checkpoint(log, 2)
    torn = checkpoint(log, 4, torn=True)
    (log / entry_name(0)).unlink()  # cleaned up long ago
    recover(log)
    assert older.exists()
    assert not torn.exists()


def test_a_torn_only_checkpoint_of_a_cleaned_log_is_damage(log: Path):
    checkpoint(log, 2, torn=True)
    (log / entry_name(0)).unlink()
    with pytest.raises(LogDamaged, match="missing"):
        recover(log)


@pytest.mark.parametrize("pointer", [b"", b'{"version":', b"[]", b'{"version":77}'])
def test_a_pointer_to_nothing_is_removed(log: Path, pointer: bytes):
    (log / "_last_checkpoint").write_bytes(pointer)
    recover(log)
    assert not (log / "_last_checkpoint").exists()


def test_a_torn_checksum_is_removed(log: Path):
    (log / checksum_name(4)).write_text('{"tableSize')
    recover(log)
    assert not (log / checksum_name(4)).exists()
    assert (log / checksum_name(3)).exists()


def test_a_table_whose_creation_was_torn_is_not_there(tmp_path: Path):
    (tmp_path / entry_name(0)).write_bytes(b"")
    recover(tmp_path)
    assert versions(tmp_path) == []


def test_an_empty_log_is_left_alone(tmp_path: Path):
    recover(tmp_path)
