"""
Progress of long work: a moving line on a terminal, now and then a plain line elsewhere.

Everything goes to stderr; stdout is for results.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

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

PLAIN_LINE_SECONDS: Final = 10.0
"""Between plain lines: a log that can be read."""

RATE_SECONDS: Final = 10.0
"""Over which a rate is measured: steady enough to read, quick enough to follow."""


class Rate:
    """Rows a second over the last `RATE_SECONDS`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, now: float, total: int) -> float:
        """The rate now that `total` rows are done; 0 until something can be said."""
        seen = self._seen
        seen.append((now, total))
        while now - seen[0][0] > RATE_SECONDS:
            seen.popleft()
        seconds = now - seen[0][0]
        return (total - seen[0][1]) / seconds if seconds else 0.0


class StreamLine:
    """How far a stream is: put by its thread, read by the main thread."""

    def __init__(self) -> None:
        self._landed: Landed | None = None
        self._rate = Rate()

    def put(self, landed: Landed) -> None:
        """Called by the stream."""
        self._landed = landed

    def __call__(self) -> str | None:
        """The line now."""
        if (landed := self._landed) is None:
            return None
        rate = self._rate.of(time.monotonic(), landed.rows)
        return f"watermark {landed.watermark}  {landed.rows:,} changes  {rate:,.0f}/s"


class CopyLine:
    """How far copies are: put by their threads, read by the main thread."""

    def __init__(self) -> None:
        self._progress: CopyProgress | None = None
        self._rate = Rate()
        self._began: tuple[float, int] | None = None

    def put(self, progress: CopyProgress) -> None:
        """Called by the copier."""
        self._progress = progress
        if self._began is None and progress.running:
            self._began = (time.monotonic(), progress.rows)

    def __call__(self) -> str | None:
        """The line now, with the rate and the time that is left by the planner's estimate."""
        if (progress := self._progress) is None:
            return None
        rate = self._rate.of(now := time.monotonic(), progress.rows)
        if progress.waiting is not None or rate < 1:
            return progress.line
        return f"{progress.line}; {rate:,.0f} rows/s{self._left(now, progress)}"

    def _left(self, now: float, progress: CopyProgress) -> str:
        """
        The time that is left by the rate since the beginning, once it has a measure.

        Between two tables no rows come for a while: the rate of such a moment says nothing.
        """
        began_at, rows = self._began or (now, 0)
        seconds, done = now - began_at, progress.rows - rows
        rest = progress.estimated_rows - progress.rows
        if seconds < RATE_SECONDS or done <= 0 or rest <= 0:
            return ""
        return f", about {duration(rest / done * seconds)} left"


class IndexLine:
    """How far the live indexer is: put by its thread, read by the main thread."""

    def __init__(self) -> None:
        self._indexed: Indexed | None = None
        self._rate = Rate()

    def put(self, indexed: Indexed) -> None:
        """Called by the indexer."""
        self._indexed = indexed

    def __call__(self) -> str | None:
        """The line now."""
        if (indexed := self._indexed) is None:
            return None
        rate = self._rate.of(time.monotonic(), indexed.documents)
        at = ", ".join(f"{index} {lsn}" for index, lsn in indexed.delivered.items())
        failed = "".join(f"  NOT FOLLOWED: {alias}" for alias in indexed.failed)
        return f"{indexed.documents:,} documents  {rate:,.0f}/s  {at or 'no index yet'}{failed}"


class ReindexLine:
    """How far a re-index is: put by its thread, read by the main thread."""

    def __init__(self) -> None:
        self._progress: ReindexProgress | None = None
        self._rate = Rate()

    def put(self, progress: ReindexProgress) -> None:
        """Called by the re-index."""
        self._progress = progress

    def __call__(self) -> str | None:
        """The line now, with the rate and the time that is left, as far as they can be told."""
        if (progress := self._progress) is None:
            return None
        rate = self._rate.of(time.monotonic(), progress.documents)
        line = f"{progress.index}: {progress.phase.value}, {progress.documents:,} documents"
        rest = (progress.expected or 0) - progress.documents
        about = f" of about {progress.expected:,}" if rest > 0 else ""
        if rate < 1:
            return f"{line}{about}"
        left = f", about {duration(rest / rate)} left" if rest > 0 else ""
        return f"{line}{about}; {rate:,.0f}/s{left}"


class Progress:
    """
    One line that says how far the work is; `line` makes it, `None` says nothing yet.

    Use as a context manager and call `look` often.
    """

    def __init__(self, line: Callable[[], str | None]) -> None:
        self._line = line
        self._live: Live | None = None
        self._last = ""
        self._said_at = time.monotonic()
        if sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self) -> None:
        """Show the line when it is time to."""
        line = self._line()
        if line is None:
            return
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif line != self._last and time.monotonic() - self._said_at >= PLAIN_LINE_SECONDS:
            click.echo(line, err=True)
            self._last, self._said_at = line, time.monotonic()
