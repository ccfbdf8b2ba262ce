"""Wall time and CPU of a piece of work: ours (Python and the JVM), or another process'."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run over `rows` rows."""

    rows: int
    wall_seconds: float
    cpu_seconds: float

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.wall_seconds

    @property
    def cpu_us_per_row(self) -> float:
        return self.cpu_seconds / self.rows * 1e6


def own(work: Callable[[], object], rows: int, jvm_pid: int) -> Measured:
    """Run `work` here; the CPU is that of this process, the JVM and Spark's workers below it."""
    before = _own_cpu() + process_cpu(jvm_pid)
    began = time.perf_counter()
    work()
    wall = time.perf_counter() - began
    return Measured(rows, wall, _own_cpu() + process_cpu(jvm_pid) - before)


def other(command: Sequence[str], rows: int) -> Measured:
    """Run a command to its end; the CPU is the command's."""
    before = _children_cpu()
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Measured(rows, time.perf_counter() - began, _children_cpu() - before)


def process_cpu(pid: int) -> float:
    """User and system seconds of a running process and of all below it, from proc(5)."""
    stats = dict(_stats())
    family = {pid}
    while more := {child for child, (parent, _) in stats.items() if parent in family} - family:
        family |= more
    return sum(stats[member][1] for member in family) / TICKS


def _stats() -> Iterator[tuple[int, tuple[int, int]]]:
    """Process id -> its parent, and clock ticks of it and of its children that have ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except FileNotFoundError:  # it has just ended
            continue
        yield int(path.parent.name), (int(fields[1]), sum(map(int, fields[11:15])))


def load() -> float:
    """The load average of the last minute: above the number of cores, wall times mean little."""
    return os.getloadavg()[0]


def _own_cpu() -> float:
    return time.process_time() + _children_cpu()


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
