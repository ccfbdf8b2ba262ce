"""Work that runs while a test continues: in a thread, or in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

END_SECONDS: Final = 600.0
"""In which a process reaches its failpoint, or catches up, on a busy machine."""


@contextmanager
def in_thread(
    work: Callable[[threading.Event], object], name: str = "background"
) -> Iterator[Callable[[], None]]:
    """
    Run `work` in a thread while the block runs; it must end once its event is set.

    The error that ended it is raised at the end of the block. Yields a check that raises it
    earlier, and fails when `work` has ended by itself.
    """
    stop, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    def check() -> None:
        if errors:
            raise errors[0]
        assert stop.is_set() or thread.is_alive(), f"{name} has ended"

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield check
    finally:
        stop.set()
        thread.join(END_SECONDS)
        assert not thread.is_alive(), f"{name} has not ended after it was requested to"
    if errors:
        raise errors[0]


def start(
    module: str, *arguments: str, log: Path, failpoint: str | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m module`; its output goes to `log`, and SIGKILL ends it at the failpoint."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "PGSTREAM_FAILPOINT": failpoint or ""},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
