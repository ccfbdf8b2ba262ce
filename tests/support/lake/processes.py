"""Writers in processes of their own, each with its own JVM, which a test may stop or kill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PRELUDE = """
import json, os, signal, sys, time
from pgstream_dagster.changelog import log as log_module
from pgstream_dagster.delta import jvm, parquet
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.errors import PgstreamError, WriterReplaced
from pgstream_dagster.lsn import Lsn
from tests.support.plugins.lake import changes

def report(*words):
    print(*words, flush=True)

lake = Lake(sys.argv[1])
log = ChangeLog(lake, "shop", jvm.gateway(jvm.JvmSettings(heap="256m")))
"""


@contextmanager
def python(script: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run `script` after the prelude; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line it prints; empty when it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def send_line(process: subprocess.Popen[str], words: str) -> None:
    """Send it a line."""
    assert process.stdin is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()
