"""An operation that runs during the demo: the stream, the indexer, the writer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Self, TypeVar

from pgstream_dagster.demo.printing import Waiting

T = TypeVar("T")

POLL_SECONDS: Final = 0.25

Operation = Callable[[threading.Event, Callable[[T], None]], object]
"""Runs until the event is set; calls the function with reports of its progress."""


class Running(Generic[T]):
    """An operation in a thread of its own until the end of the `with` block."""

    def __init__(self, name: str, operation: Operation[T]) -> None:
        self._operation, self._stop = operation, threading.Event()
        self._latest: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"demo-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def latest(self) -> T | None:
        """The latest report; raises the error that ended the operation."""
        if self._error is not None:
            raise self._error
        return self._latest

    def wait_until(
        self, holds: Callable[[T], bool], waiting: Waiting, describe: Callable[[T], str]
    ) -> None:
        """
        Wait for a report for which `holds` is true; `describe` shows the progress until then.

        Raises:
            PgstreamError: the error that ended the operation.
        """
        while (latest := self.latest()) is None or not holds(latest):
            waiting.report("" if latest is None else describe(latest))
            time.sleep(POLL_SECONDS)

    def _run(self) -> None:
        try:
            self._operation(self._stop, self._report)
        except BaseException as error:  # noqa: BLE001 - `latest` raises it in the demo's thread
            self._error = error

    def _report(self, latest: T) -> None:
        self._latest = latest
