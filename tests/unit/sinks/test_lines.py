"""Lines on the standard output: complete, and an output that fails is this sink's outage alone."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.sinks import lines
from pgstream_dagster.sinks.envelope import Envelope
from pgstream_dagster.sinks.lines import StdoutSink
from tests.support.changes import change


class Disk(io.RawIOBase):
    """Takes so many bytes, then fails as a write to a full disk does."""

    def __init__(self, room: int, number: int = errno.ENOSPC) -> None:
        self.room, self.number, self.content = room, number, b""

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        taken = bytes(content[: self.room])
        if content and not taken:
            raise OSError(self.number, os.strerror(self.number))
        self.content, self.room = self.content + taken, self.room - len(taken)
        return len(taken)


@pytest.fixture(autouse=True)
def output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_output", lines._Output())


def stdout(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(disk)))


def sink() -> StdoutSink:
    made = StdoutSink("lines", Envelope("shop").of_changes)
    made.open()
    return made


def changes(count: int, note: str = "x" * 5_000) -> list[Change]:
    return [
        change(after={"id": str(n), "amount": "1", "note": note}, ordinal=n) for n in range(count)
    ]


def ids(content: bytes) -> Iterator[str]:
    return (json.loads(line)["event_id"] for line in content.splitlines())


def test_a_batch_is_on_the_output_when_it_is_delivered(capfdbinary) -> None:
    batch = changes(3)
    assert sink().deliver(ChangeBatch(batch)) == {}
    assert [*ids(capfdbinary.readouterr().out)] == [c.event_id for c in batch]


@pytest.mark.parametrize("room", [0, 1, 5_000, 12_000])
def test_a_full_disk_is_waited_for_and_leaves_no_half_line(monkeypatch, room) -> None:
    disk, batch = Disk(room), changes(3)
    stdout(disk, monkeypatch)
    for _ in range(2):
        with pytest.raises(SinkUnreachable, match="standard output: No space left on device"):
            sink().deliver(ChangeBatch(batch))
    disk.room = 1 << 20
    assert sink().deliver(ChangeBatch(batch)) == {}  # another opening of the sink
    received = [*ids(disk.content)]
    assert received[-3:] == [c.event_id for c in batch]
    assert len(received) <= 3 + 3


def test_an_output_without_room_is_no_error_of_the_lake(monkeypatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SinkUnreachable, match="No space left"):
            sink().deliver(ChangeBatch(changes(1)))


def test_a_reader_that_closed_the_output_stops_the_sink(monkeypatch) -> None:
    stdout(Disk(0, errno.EPIPE), monkeypatch)
    with pytest.raises(SinkRefused, match="its reader closed the output"):
        sink().deliver(ChangeBatch(changes(1)))
