"""
Progress of long operations: a live line on a terminal, otherwise a plain line every few seconds.

Everything goes to stderr; stdout is for results.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pgstream_dagster.cli.render import duration

if TYPE_CHECKING:
    from pgstream_dagster.changelog.land import Landed
    from pgstream_dagster.copy.copying import CopyProgress
    from pgstream_dagster.search.index import Indexed
    from pgstream_dagster.search.reindex import ReindexProgress
    from pgstream_dagster.sinks.state import Progress as SinkProgress

T = TypeVar("T")

PLAIN_LINE_SECONDS: Final = 10.0
"""Between plain lines, so that a log stays readable."""

RATE_SECONDS: Final = 10.0
"""The period over which a rate is measured: a compromise between steady and current."""


class Rate:
    """Rows per second over the last `RATE_SECONDS`."""

    def __init__(self) -> None:
        self._totals: deque[tuple[float, int]] = deque()

    def update(self, now: float, total: int) -> float:
        """The rate, given that `total` rows are done at `now`; 0 after a single update."""
        totals = self._totals
        totals.append((now, total))
        while now - totals[0][0] > RATE_SECONDS:
            totals.popleft()
        seconds = now - totals[0][0]
        return (total - totals[0][1]) / seconds if seconds else 0.0


class Line(ABC, Generic[T]):
    """A line about the latest report of an operation: `put` by its thread, read by the main one."""

    def __init__(self) -> None:
        self._latest: T | None = None
        self._rate = Rate()

    def put(self, report: T) -> None:
        """Called by the operation."""
        self._latest = report

    def __call__(self) -> str | None:
        """The current line; `None` before the first report."""
        return None if self._latest is None else self._text(self._latest, time.monotonic())

    @abstractmethod
    def _text(self, report: T, now: float) -> str:
        """The line for a report."""


class StreamLine(Line["Landed"]):
    """Progress of a stream."""

    def _text(self, report: Landed, now: float) -> str:
        rate = self._rate.update(now, report.rows)
        return f"watermark {report.watermark}  {report.rows:,} changes  {rate:,.0f}/s"


class CopyLine(Line["CopyProgress"]):
    """Progress of copies, with the rate and the remaining time by the planner's estimate."""

    def __init__(self) -> None:
        super().__init__()
        self._began: tuple[float, int] | None = None

    def put(self, report: CopyProgress) -> None:
        """Called by the copy."""
        super().put(report)
        if self._began is None and report.running:
            self._began = (time.monotonic(), report.rows)

    def _text(self, report: CopyProgress, now: float) -> str:
        rate = self._rate.update(now, report.rows)
        if report.waiting is not None or rate < 1:
            return report.line
        return f"{report.line}; {rate:,.0f} rows/s{self._left(now, report)}"

    def _left(self, now: float, report: CopyProgress) -> str:
        """
        The remaining time by the average rate, once that has been measured long enough.

        The current rate would mislead: between two tables no rows arrive for a while.
        """
        began_at, rows = self._began or (now, 0)
        seconds, done = now - began_at, report.rows - rows
        remaining = report.estimated_rows - report.rows
        if seconds < RATE_SECONDS or done <= 0 or remaining <= 0:
            return ""
        return f", about {duration(remaining / done * seconds)} left"


class IndexLine(Line["Indexed"]):
    """Progress of the live indexer."""

    def _text(self, report: Indexed, now: float) -> str:
        rate = self._rate.update(now, report.documents)
        at = ", ".join(f"{index} {lsn}" for index, lsn in report.delivered.items())
        failed = "".join(f"  NOT FOLLOWED: {alias}" for alias in report.failed)
        return f"{report.documents:,} documents  {rate:,.0f}/s  {at or 'no index yet'}{failed}"


class SinkLine(Line["Mapping[str, SinkProgress]"]):
    """Progress of the sinks."""

    def _text(self, report: Mapping[str, SinkProgress], now: float) -> str:
        changes = sum(sink.changes for sink in report.values())
        rate = self._rate.update(now, changes)
        at = ", ".join(f"{name} {_position(sink)}" for name, sink in sorted(report.items()))
        return f"{changes:,} changes  {rate:,.0f}/s  {at or 'nothing delivered yet'}"


def _position(sink: SinkProgress) -> str:
    if sink.error is not None:
        return "WAITING"
    return "" if sink.cursor is None else str(sink.cursor.watermark)


class ReindexLine(Line["ReindexProgress"]):
    """Progress of a re-index, with the rate and the remaining time as far as they are known."""

    def _text(self, report: ReindexProgress, now: float) -> str:
        rate = self._rate.update(now, report.documents)
        line = f"{report.index}: {report.phase.value}, {report.documents:,} documents"
        remaining = (report.expected or 0) - report.documents
        about = f" of about {report.expected:,}" if remaining > 0 else ""
        if rate < 1:
            return f"{line}{about}"
        left = f", about {duration(remaining / rate)} left" if remaining > 0 else ""
        return f"{line}{about}; {rate:,.0f}/s{left}"


class Progress:
    """
    One line about the progress of an operation; `line` returns it, `None` while there is none.

    Use as a context manager and call `refresh` often.
    """

    def __init__(self, line: Callable[[], str | None]) -> None:
        self._line = line
        self._live: Live | None = None
        self._last = ""
        self._printed_at = time.monotonic()
        if sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def refresh(self) -> None:
        """Show the current line when it is due."""
        line = self._line()
        if line is None:
            return
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif line != self._last and time.monotonic() - self._printed_at >= PLAIN_LINE_SECONDS:
            click.echo(line, err=True)
            self._last, self._printed_at = line, time.monotonic()
