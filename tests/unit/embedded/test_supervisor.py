"""A supervisor ends what it runs when its parent has ended, whenever that was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from pgstream_dagster.embedded import supervisor

NO_PROCESS = 0


def test_a_parent_that_ended_before_its_command_began_leaves_nothing(tmp_path: Path) -> None:
    folder, ran = tmp_path / "server", tmp_path / "ran"
    folder.mkdir()
    plan = {
        "parent": NO_PROCESS,
        "commands": [["/bin/sh", "-c", f"sleep 600; touch {ran}"]],
        "signals": [signal.SIGTERM, signal.SIGKILL],
        "remove": str(folder),
        "log": str(tmp_path / "log"),
        "env": {},
        "folder": str(tmp_path),
        "user": None,
        "group": None,
        "extra_groups": [],
    }
    reading, writing = os.pipe()
    os.close(reading)  # as the kernel does when a parent ends
    command = [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(plan)]
    with os.fdopen(writing, "wb") as stdout:
        ended = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, b"")
    assert not folder.exists() and not ran.exists()
