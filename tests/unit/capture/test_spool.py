"""The spool: what is read is what was written, or an error with a name."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgstream_dagster.capture.spool import Spool, SpoolFile
from pgstream_dagster.errors import Retry, SpoolFailed

MESSAGES = [b"header, of 25 bytes at all " + bytes([n]) * n for n in range(1, 200)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def spool(folder: Path) -> Iterator[Spool]:
    spool = Spool(folder)
    yield spool
    spool.close()


def written(spool: Spool, messages: list[bytes]) -> SpoolFile:
    file = spool.create()
    for message in messages:
        file.add(message, len(message))
        if len(message) % 50 == 0:
            file.flush()
    file.flush()
    return file


def read(file: SpoolFile) -> list[bytes]:
    messages: list[bytes] = []
    for data, lengths in file.read():
        at = 0
        for length in lengths.tolist():
            messages.append(data[at : at + length])
            at += length
    return messages


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_was_written_is_read(spool: Spool) -> None:
    assert read(written(spool, MESSAGES)) == MESSAGES
    assert read(spool.create()) == []


def test_a_removed_folder_takes_nothing_away(spool: Spool, folder: Path) -> None:
    file = written(spool, MESSAGES)
    shutil.rmtree(folder)
    assert read(file) == MESSAGES
    assert read(written(spool, MESSAGES)) == MESSAGES  # the folder is made again


def test_connections_that_share_a_folder_never_meet(spool: Spool, folder: Path) -> None:
    kept = folder / "not ours"
    folder.mkdir()
    kept.write_text("kept")
    first = written(spool, MESSAGES)
    other = Spool(folder)
    second = written(other, MESSAGES[:7])
    assert read(second) == MESSAGES[:7]
    other.close()
    assert read(first) == MESSAGES
    assert list(folder.iterdir()) == [kept]


@pytest.mark.parametrize("left", [0, 1, 17, 500, 5_000])
def test_a_file_cut_short_is_never_a_shorter_transaction(spool: Spool, left: int) -> None:
    file = written(spool, MESSAGES)
    assert file._file is not None
    os.truncate(file._file.fileno(), left)
    with pytest.raises(SpoolFailed, match="had been written") as raised:
        read(file)
    assert raised.value.retry is Retry.LATER


def test_a_descriptor_is_taken_once_something_is_written_and_given_back(spool: Spool) -> None:
    before = descriptors()
    files = [spool.create() for _ in range(20)]
    assert descriptors() == before
    for file in files[:5]:
        file.add(MESSAGES[0], len(MESSAGES[0]))
        file.flush()
    assert descriptors() == before + 5
    files[0].close()
    assert descriptors() == before + 4
    spool.close()
    assert descriptors() == before


def test_a_full_disk_has_a_name(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    with Path("/dev/full").open("r+b", buffering=1 << 16) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        with pytest.raises(SpoolFailed, match="No space left on device") as raised:
            written(spool, MESSAGES)
        spool.close()
    assert (raised.value.folder, raised.value.retry) == (str(folder), Retry.LATER)


def test_a_folder_that_cannot_be_made_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolFailed, match="Not a directory"):
        written(Spool(tmp_path / "file" / "state"), MESSAGES)


def test_no_free_descriptor_has_a_name(spool: Spool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(SpoolFailed, match="Too many open files"):
            written(spool, MESSAGES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
