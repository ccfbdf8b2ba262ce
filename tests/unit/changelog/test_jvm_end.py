"""An end of the JVM is an error with a name."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from pgstream_dagster.changelog import jvm
from pgstream_dagster.errors import JvmEnded

REFUSED = [ConnectionRefusedError(111), Py4JNetworkError("Answer from Java side is empty")]


@pytest.mark.parametrize("error", REFUSED)
def test_a_call_to_a_jvm_that_was_killed_names_its_end(error: Exception) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process.kill()
    gateway: Any = SimpleNamespace(proc=process)
    with pytest.raises(JvmEnded, match="exit code -9"), jvm.end_named(gateway):
        raise error


def test_an_error_while_the_jvm_lives_stays_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "END_SECONDS", 0.01)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        gateway: Any = SimpleNamespace(proc=process)
        with pytest.raises(PermissionError), jvm.end_named(gateway):
            raise PermissionError(13)
