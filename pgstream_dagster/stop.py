"""
A request to end, and what it interrupts. Threads share one; it opens nothing by itself.

An event alone is seen only by code that looks at it. What waits in a server (a lock, an older
transaction, a query) does not look, so it registers how to interrupt that wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

INTERRUPT_SECONDS: Final = 5.0
"""For an interruption to reach the server: what it ends has ended on our side before."""


class Cancelled(BaseException):
    """Work ended because it was asked to; not an `Exception`, so no handler takes it for one."""


class Stop(threading.Event):
    """
    An event that, once set, interrupts what is registered; it is never cleared.

    It counts as set as soon as `parent` is; to interrupt then is for another thread to do by `set`.
    """

    def __init__(self, parent: threading.Event | None = None) -> None:
        super().__init__()
        self._parent = parent
        self._lock = threading.RLock()
        self._interrupts: list[threading.Thread] = []

    def is_set(self) -> bool:
        """Whether anything asked to end."""
        return super().is_set() or (self._parent is not None and self._parent.is_set())

    def set(self) -> None:
        """Ask to end. Returns at once: each interruption runs in a thread of its own."""
        super().set()
        with self._lock:
            due, self._interrupts = self._interrupts, []
            for thread in due:
                thread.start()

    def require(self) -> None:
        """Raise `Cancelled` when this is set: nothing new begins."""
        if self.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`; `Cancelled` when this is set before they are over."""
        self.wait(seconds)
        self.require()

    @contextmanager
    def interrupts(self, interrupt: Callable[[], None]) -> Generator[None]:
        """
        When this is set while the block runs, call `interrupt`, once, from another thread.

        Whatever the block raises after that is `Cancelled`.
        """
        thread = threading.Thread(target=interrupt, name="pgstream-interrupt", daemon=True)
        with self._lock:
            self.require()
            self._interrupts.append(thread)
        try:
            yield
        except Exception as error:
            if self.is_set():
                raise Cancelled from error
            raise
        finally:
            self._forget(thread)

    def _forget(self, thread: threading.Thread) -> None:
        with self._lock:
            if thread in self._interrupts:
                self._interrupts.remove(thread)
                return
        thread.join(INTERRUPT_SECONDS)
