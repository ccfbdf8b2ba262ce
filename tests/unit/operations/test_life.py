"""Signs of life: what a reader finds, whoever writes at the same time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pgstream_dagster.operations import life
from pgstream_dagster.operations.life import Life


def test_sign_is_what_was_said_last(tmp_path: Path) -> None:
    path = tmp_path / "state" / "shop.stream.json"
    assert life.read(path) is None
    said = Life(path)
    said.say("streaming", rows=1)
    said.say("reconnecting", "no route to host", rows=2)
    sign = life.read(path)
    assert sign is not None
    assert (sign.state, sign.reason, sign.facts) == (
        "reconnecting",
        "no route to host",
        {"rows": 2},
    )
    assert sign.pid == os.getpid()
    assert not sign.is_gone


def test_two_that_speak_at_once_disturb_neither_each_other_nor_a_reader(tmp_path: Path) -> None:
    """As a stream does that slept, while the one that replaced it speaks."""
    path = tmp_path / "shop.stream.json"
    Life(path).say("streaming")

    def speak(state: str) -> None:
        own = Life(path)
        for n in range(500):
            own.say(state, n=n)

    with ThreadPoolExecutor(2) as pool:
        speaking = [pool.submit(speak, state) for state in ("streaming", "reconnecting")]
        while not all(one.done() for one in speaking):
            assert life.read(path) is not None
        for one in speaking:
            one.result()
    assert list(tmp_path.iterdir()) == [path]
