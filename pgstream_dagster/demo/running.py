"""An operation that goes on beside the demo: the stream, the indexer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from pgstream_dagster.demo.printing import Waiting

T = TypeVar("T")

POLL_SECONDS: Final = 0.05

Operation = Callable[[threading.Event, Callable[[T], None]], object]
"""Goes on until the event is set, and reports now and then."""

Show = Callable[[T], str]
"""How far an operation is, for people."""


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def latest(self) -> T | None:
        """What it reported last; raises what ended it."""
        if self._error is not None:
            raise self._error
        return self._latest

    def wait_until(self, holds: Callable[[T], bool], waiting: Waiting, shown: Show[T]) -> None:
        """
        Wait for a report of which this holds, as long as the operation goes on.

        Raises:
            PgstreamError: whatever ended the operation.
        """
        while (latest := self.latest()) is None or not holds(latest):
            waiting.look("" if latest is None else shown(latest))
            time.sleep(POLL_SECONDS)

    def _run(self) -> None:
        try:
            self._operation(self._stop, self._report)
        except BaseException as error:  # noqa: BLE001 - `latest` raises it in the demo's thread
            self._error = error

    def _report(self, latest: T) -> None:
        self._latest = latest
