"""
Work after a commit that need not be waited for: Delta's checksum and checkpoint.

One background thread per table. They only make the next opening of the table faster, so a failure
is logged and counted and never affects a commit.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PostCommitTask:
    """One task after a commit; if replaceable, only that of the newest commit is run."""

    kind: str
    run: Callable[[], None]
    is_replaceable: bool = False


class PostCommit:
    """A queue of tasks and the thread that runs them in order."""

    def __init__(self, name: str, after_each_commit: Callable[[], None] | None = None) -> None:
        self.failures = 0
        self._name = name
        self._after = after_each_commit
        self._queue: queue.Queue[tuple[int, list[PostCommitTask]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._newest = -1  # version of the last commit submitted

    def submit(self, version: int, tasks: list[PostCommitTask]) -> None:
        """Run the tasks of commit `version` later."""
        self._newest = version
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put((version, tasks))

    def wait(self) -> None:
        """Wait until everything submitted has run."""
        self._queue.join()

    def close(self) -> None:
        """Wait, then end the thread. Idempotent; `submit` would start another."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            submitted = self._queue.get()
            try:
                if submitted is None:
                    return
                version, tasks = submitted
                for task in tasks:
                    if not task.is_replaceable or version == self._newest:
                        self._run(version, task)
                if self._after is not None:
                    self._after()
            finally:
                self._queue.task_done()

    def _run(self, version: int, task: PostCommitTask) -> None:
        try:
            task.run()
        except Exception:  # of any kind: the commit is durable, and the next one tries again
            self.failures += 1
            logger.warning(
                "%s: the %s after commit %d failed; the commit is not affected",
                self._name,
                task.kind,
                version,
                exc_info=True,
            )
