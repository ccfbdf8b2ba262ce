"""What ends an operation from outside is an error with a name."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from pgstream_dagster.delta import faults, jvm
from pgstream_dagster.errors import (
    CommitFailed,
    DescriptorsExhausted,
    JvmEnded,
    LakeAway,
    WriterReplaced,
)
from pgstream_dagster.lsn import Lsn

REFUSED = [ConnectionRefusedError(111), Py4JNetworkError("Answer from Java side is empty")]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """What this process takes for its JVM."""
    monkeypatch.setattr(jvm, "END_SECONDS", 5.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(jvm, "_gateway", SimpleNamespace(proc=process))
        yield process


def raise_named(error: Exception, folder: Path) -> None:
    with faults.named(f"file:{folder}"):
        raise error


@pytest.mark.parametrize("error", REFUSED)
def test_a_call_to_a_jvm_that_was_killed_names_its_end(
    process: subprocess.Popen[bytes], error: Exception, tmp_path: Path
) -> None:
    process.kill()
    with pytest.raises(JvmEnded, match="exit code -9"):
        raise_named(error, tmp_path)


@pytest.mark.parametrize("error", [*REFUSED, Py4JError("An error occurred while calling o1.close")])
@pytest.mark.usefixtures("process")
def test_a_call_to_a_jvm_that_was_replaced_meanwhile_names_its_end(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "END_SECONDS", 0.01)
    monkeypatch.setattr(jvm, "replaced", -9)
    with pytest.raises(JvmEnded, match="exit code -9"):
        raise_named(error, tmp_path)


@pytest.mark.usefixtures("process")
def test_an_error_while_the_jvm_lives_and_the_lake_is_there_stays_itself(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        raise_named(IsADirectoryError(errno.EISDIR, "no file"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_has_a_name_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(WriterReplaced):
        raise_named(WriterReplaced("app", Lsn(1), Lsn(2)), tmp_path / "not there")


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("number", "folder", "name"),
    [
        (errno.ENOSPC, "", CommitFailed),
        (errno.ENOENT, "not there", LakeAway),
        (errno.EMFILE, "", DescriptorsExhausted),
    ],
    ids=["full a moment ago", "away", "no descriptor"],
)
def test_an_error_of_the_operating_system_has_a_name(
    tmp_path: Path, number: int, folder: str, name: type[Exception]
) -> None:
    with pytest.raises(name):
        raise_named(OSError(number, os.strerror(number)), tmp_path / folder)
