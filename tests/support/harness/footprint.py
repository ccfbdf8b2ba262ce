"""
How much memory a stream takes: a process of its own that lands in files, without a JVM.

`measured` starts it. The peak is that of the whole process (VmHWM, which the kernel keeps) above
what it held when everything was loaded and nothing was on its way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pgstream_dagster.changelog.land import FlushPolicy
from pgstream_dagster.delta import parquet
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.memory import MemoryBound
from tests.support.harness.capture import Capture, MemoryCommit, MemoryLog
from tests.support.plugins.cluster import psql

Works = Sequence[Sequence[str]]
"""Lists of statements; the lists run beside each other."""


class Footprint(NamedTuple):
    """Bytes at most above those at rest, rows by operation, and why copies were asked for."""

    peak_bytes: int
    rows: dict[str, int]
    copies: list[str]


@dataclass
class FileLog(MemoryLog):
    """Commits are files, written as the product writes them."""

    folder: Path = Path()
    ops: Counter[str] = field(default_factory=Counter[str])

    def commit(self, tables: Iterable[pa.Table], end_lsn: Lsn) -> MemoryCommit:
        rows = 0
        for table in tables:
            parquet.sync(parquet.write(table, f"file://{self.folder}"))
            rows += table.num_rows
            self.ops.update(table["op"].to_pylist())
            del table
        return self._committed(MemoryCommit(len(self.commits), rows, end_lsn))


def footprint(dsn: str, folder: Path, memory_bytes: int, works: Works) -> Footprint:
    """Land `works` in this process."""
    memory = MemoryBound(memory_bytes)
    policy = FlushPolicy(flush_bytes=min(FlushPolicy().flush_bytes, memory.flush_bytes))
    capture = Capture(dsn, policy=policy, state=folder / "state", memory=memory)
    capture.log = log = FileLog(capture.start, folder=folder)
    with capture:
        psql(dsn, "insert into warm values (1)")
        capture.catch_up()
        rest = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
        threads = [threading.Thread(target=psql, args=(dsn, *work)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        capture.catch_up(timeout_seconds=300)
    reasons = [reason for *_, reason in capture.requested if reason]
    return Footprint(_status("VmHWM") - rest, dict(log.ops), reasons)


def measured(dsn: str, folder: Path, memory_bytes: int, works: Works) -> Footprint:
    """The same in a process of its own."""
    psql(dsn, "create table warm (id int primary key)")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.harness.footprint"],
        input=json.dumps([dsn, str(folder), memory_bytes, works]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return Footprint(*json.loads(ran.stdout))


def _status(name: str) -> int:
    """A figure of this process, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    dsn_, folder_, *rest_ = json.loads(sys.stdin.read())
    json.dump(footprint(dsn_, Path(folder_), *rest_), sys.stdout)
