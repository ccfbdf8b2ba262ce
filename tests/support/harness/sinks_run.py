"""
`sink run` in a process of its own, for tests that suspend and kill it.

`python -m tests.support.harness.sinks_run LEASE_SECONDS` delivers to the sinks of the pgstream.yaml
in the current folder until SIGTERM.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pgstream_dagster import Pipeline
from pgstream_dagster.sinks import follow, state
from pgstream_dagster.sinks.run import run


@contextmanager
def delivering(
    folder: Path,
    environment: Mapping[str, str],
    *,
    lease_seconds: float = 60.0,
    failpoint: str = "",
    name: str = "sinks",
) -> Iterator[subprocess.Popen[bytes]]:
    """The process; it is gone at the end. Its output is in `folder/name.log`."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.harness.sinks_run", str(lease_seconds)],
            cwd=folder,
            env={
                **os.environ,
                **environment,
                "PGSTREAM_FAILPOINT": failpoint,
                "PYTHONPATH": str(Path(__file__).parents[3]),  # it runs in another folder
            },
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """What the process does."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    state.LEASE_SECONDS = float(sys.argv[1])  # type: ignore[misc]
    follow.LONGEST_WAIT_SECONDS = 0.5  # type: ignore[misc]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run(Pipeline.from_file("pgstream.yaml"), stop=stop)


if __name__ == "__main__":
    main()
