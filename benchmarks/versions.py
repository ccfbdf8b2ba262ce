"""
Another checkout against this one: `python -m benchmarks.versions FOLDER inserts mixed copy`.

Each has a process and servers of its own and measures a round when its turn comes, so that whatever
slows the machine slows both. The ratio is the median of those of the pairs: above 1, this checkout
is faster. Both run with the Python of this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks import copying, search, stream
from benchmarks.measure import Measured, load


def _kafka(major: int, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    from benchmarks import kafka  # not every older checkout has it

    return kafka.deliveries(major, rows, rounds)


SIDES = {
    "inserts": stream.inserts,
    "mixed": stream.mixed,
    "copy": copying.copies,
    "reindex": search.reindexes,
    "kafka": _kafka,
}
"""The benchmarks that older checkouts have, too: their process imports no other module."""

HERE = Path(__file__).resolve()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions")
    parser.add_argument("folder", type=Path, help="the other checkout")
    parser.add_argument("what", nargs="+", choices=SIDES)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--major", type=int, default=15)
    parser.add_argument("--measures", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measures:
        _measure(*given.what, given.major, given.rows, given.rounds)
        return
    for what in given.what:
        arguments = [what, *(f"--{n}={getattr(given, n)}" for n in ("rows", "rounds", "major"))]
        _compare(what, given.folder.resolve(), arguments, given.rounds)


def _measure(what: str, major: int, rows: int, rounds: int) -> None:
    """Measure a round after each line of standard input, and print it as JSON."""
    measured = SIDES[what](major, rows, rounds)
    for _ in sys.stdin:
        print(json.dumps(asdict(next(measured)[0])), flush=True)


def _compare(what: str, other: Path, arguments: list[str], rounds: int) -> None:
    print(f"\n{what}: {HERE.parent.parent} against {other}")
    print(
        f"{'round':>5} {'load':>5} {'rows/s':>12} {'us/row':>7} {'other':>12} {'us/row':>7} ratio"
    )
    speeds: list[float] = []
    costs: list[float] = []
    with _process(HERE.parent.parent, arguments) as ours, _process(other, arguments) as theirs:
        for number in range(rounds):
            first, second = (ours, theirs) if number % 2 else (theirs, ours)
            pair = {process.pid: _round(process) for process in (first, second)}
            here, there = pair[ours.pid], pair[theirs.pid]
            speeds.append(here.rows_per_second / there.rows_per_second)
            if there.cpu_us_per_row:  # a reindex works in other processes
                costs.append(here.cpu_us_per_row / there.cpu_us_per_row)
            print(
                f"{number + 1:>5} {load():>5.1f} {here.rows_per_second:>12,.0f}"
                f" {here.cpu_us_per_row:>7.1f} {there.rows_per_second:>12,.0f}"
                f" {there.cpu_us_per_row:>7.1f} {speeds[-1]:.2f}",
                flush=True,
            )
    cpu = f", CPU {statistics.median(costs):.2f}" if costs else ""
    print(f"median {statistics.median(speeds):.2f}{cpu}")


@contextmanager
def _process(folder: Path, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    # -P: this file's folder does not come before the other checkout
    command = [sys.executable, "-P", str(HERE), str(folder), *arguments, "--measures"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=environment, cwd=folder, text=True
    ) as process:
        yield process


def _round(process: subprocess.Popen[str]) -> Measured:
    assert process.stdin is not None
    assert process.stdout is not None
    print(file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"the process of a checkout ended with {process.wait()}")
    return Measured(**json.loads(line))


if __name__ == "__main__":
    main()
