"""Heartbeats: what a reader finds, whatever happens to the file and its folder."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pgstream_dagster import heartbeat, process_identity
from pgstream_dagster.heartbeat import HeartbeatWriter


def test_sign_is_what_was_written_last(tmp_path: Path) -> None:
    path = tmp_path / "state" / "shop.stream.json"
    assert heartbeat.read(path) is None
    writer = HeartbeatWriter(path)
    writer.say("streaming", rows=1)
    writer.say("reconnecting", "no route to host", rows=2)
    sign = heartbeat.read(path)
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
    HeartbeatWriter(path).say("streaming")

    def speak(state: str) -> None:
        own = HeartbeatWriter(path)
        for n in range(500):
            own.say(state, n=n)

    with ThreadPoolExecutor(2) as pool:
        speaking = [pool.submit(speak, state) for state in ("streaming", "reconnecting")]
        while not all(writing.done() for writing in speaking):
            assert heartbeat.read(path) is not None
        for writing in speaking:
            writing.result()
    assert list(tmp_path.iterdir()) == [path]


def test_deleted_state_folder_is_made_again_by_the_next_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "state" / "shop.stream.json"
    own = HeartbeatWriter(path)
    own.say("streaming")
    shutil.rmtree(path.parent)
    own.say("streaming")
    assert heartbeat.read(path) is not None


def test_heartbeat_that_cannot_be_written_is_logged_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    folder.touch()  # no folder can be there: root may write to a read-only one
    own = HeartbeatWriter(folder / "shop.stream.json")
    with caplog.at_level(logging.WARNING):
        own.say("streaming")
        own.say("streaming")
    assert len(caplog.messages) == 1
    assert str(folder) in caplog.messages[0]
    folder.unlink()
    own.say("streaming")
    assert heartbeat.read(folder / "shop.stream.json") is not None


def test_full_disk_leaves_the_last_heartbeat_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "shop.stream.json"
    own = HeartbeatWriter(path)
    own.say("streaming", n=1)
    beat = (
        "import resource, signal, sys; from pathlib import Path;"
        "from pgstream_dagster.heartbeat import HeartbeatWriter;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8));"  # writes fail in the middle
        "HeartbeatWriter(Path(sys.argv[1])).say('streaming', n=2)"
    )
    subprocess.run([sys.executable, "-c", beat, str(path)], check=True, capture_output=True)
    sign = heartbeat.read(path)
    assert sign is not None
    assert sign.facts == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"state": "stre',
        b"\0" * 100,
        b"[1]",
        b'{"state": "streaming"}',
        b"\xff",
        b'{"state": "streaming", "reason": null, "pid": 1, "at": "now", "process": "a:1:2"}',
        b'{"state": "streaming", "reason": null, "pid": 1, "at": 1.0, "process": "a"}',
        b'{"state": "streaming", "reason": null, "pid": 1, "at": 1.0, "process": "a:x:2"}',
    ],
)
def test_torn_heartbeat_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "shop.stream.json"
    path.write_bytes(content)
    assert heartbeat.read(path) is None


def test_process_that_ended_is_gone_before_its_parent_takes_notice() -> None:
    name = "from pgstream_dagster.process_identity import this_process; print(this_process())"
    command = [sys.executable, "-c", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        identity = child.stdout.readline().strip()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is listed
        assert process_identity.has_ended(identity)


def test_process_that_ended_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "shop.stream.json"
    beat = (
        "import sys; from pathlib import Path;"
        "from pgstream_dagster.heartbeat import HeartbeatWriter;"
        "HeartbeatWriter(Path(sys.argv[1])).say('streaming')"
    )
    subprocess.run([sys.executable, "-c", beat, str(path)], check=True)
    sign = heartbeat.read(path)
    assert sign is not None
    assert sign.is_gone


def test_process_of_another_pid_namespace_is_not_judged_by_its_pid(tmp_path: Path) -> None:
    """Containers may share a host name; their pids mean nothing to each other."""
    path = tmp_path / "shop.stream.json"
    HeartbeatWriter(path).say("streaming")
    sign = heartbeat.read(path)
    assert sign is not None
    boot_id, _, rest = sign.process.partition(".")
    elsewhere = replace(sign, process=f"{boot_id}.1:{rest.partition(':')[2]}")
    assert not elsewhere.is_gone


def test_operation_that_reported_its_end_does_not_run_while_its_process_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.stream.json"
    writer = HeartbeatWriter(path)
    writer.say("reconnecting")
    sign = heartbeat.read(path)
    assert sign is not None
    silent = replace(sign, at=sign.at - heartbeat.SILENT_SECONDS)
    assert sign.may_run
    assert silent.may_run
    assert replace(sign, process="elsewhere:1:1").may_run
    assert not replace(silent, process="elsewhere:1:1").may_run
    later = sign.at + 3600  # a clock that was set back
    assert not replace(sign, at=later, process="elsewhere:1:1").may_run
    writer.say(heartbeat.ENDED)
    last = heartbeat.read(path)
    assert last is not None
    assert not last.may_run


def test_later_process_of_the_same_pid_is_not_the_one_that_spoke(tmp_path: Path) -> None:
    path = tmp_path / "shop.stream.json"
    HeartbeatWriter(path).say("streaming")
    sign = heartbeat.read(path)
    assert sign is not None
    place, pid, _ = sign.process.rsplit(":", 2)
    assert replace(sign, process=f"{place}:{pid}:1").is_gone
