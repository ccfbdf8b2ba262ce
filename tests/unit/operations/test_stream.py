"""The connections of a stream, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pgstream_dagster.errors import MessagesUncertain
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.operations import stream


def test_what_must_be_read_whole_is_passed_though_the_log_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slot that is behind the log sends it again, until a later position is confirmed."""
    writer, connections = SimpleNamespace(watermark=Lsn(120)), list[bool]()

    class Landing:
        def run(self, until: Lsn) -> None:
            if False not in connections:
                raise MessagesUncertain(7, 100, "0/64")
            writer.watermark = until

    @contextmanager
    def landing(*_: object, streaming: bool) -> Iterator[Landing]:
        connections.append(streaming)
        assert len(connections) < 9
        yield Landing()

    monkeypatch.setattr(stream, "_landing", landing)
    session: Any = SimpleNamespace(writer=writer)
    stream._run(session, threading.Event(), Lsn(140))
    assert connections == [True, False, True]
    assert writer.watermark == 140
