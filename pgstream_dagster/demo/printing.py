"""How the demos print: a line at a time, each with the seconds since the beginning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

REPORT_SECONDS: Final = 5.0
"""Between lines during a wait, which would otherwise look like a hang."""

FETCHED: Final = " (downloaded by the first run)"

Echo = Callable[[str], None]


def timed(echo: Echo) -> Echo:
    """As `echo`, each line with the seconds since this call."""
    began = time.monotonic()
    return lambda line: echo(f"{time.monotonic() - began:6.1f} s  {line}")


class Step(StrEnum):
    """The steps of the demo, in their order."""

    START = "starting a private Postgres, OpenSearch and Kafka"
    LOAD = "loading the source"
    OUTBOX = "outbox: a subscription on the source makes events of flights that get late"
    SETUP = "setup: publication, slot, one snapshot of all tables into the change log"
    TABLES = "tables: a typed Delta table of each table, and a history of the planes"
    SINKS = "sinks: the log goes to Kafka, a second database and a webhook receiver from here"
    INDEX = "index: a first index behind each alias, built from the change log"
    STREAM = "stream: changes of every kind, from the source into log and indices"
    SEARCH = "search: queries of the aliases"
    REINDEX = "re-index: a new index behind an alias, while writes continue"
    LATENCY = "measuring the latency"
    COMPARE_INDICES = "comparing change log and indices, document by document"
    DELIVER = "sinks: the writer has ended, and the rest of the log is delivered"
    COMPARE_TARGETS = "comparing what the sinks have delivered, change by change and row by row"
    COMPARE_TABLES = "tables: merged again, and compared with source and log, value by value"
    QUERY = "tables: SQL asks them; their columns have followed the source"


BAR_WIDTH: Final = 26  # characters


class Steps:
    """
    The lines of the demo, each with the seconds since the beginning; steps with their number.

    `bar` may be called by another thread.
    """

    def __init__(self, echo: Echo) -> None:
        self._echo, self._step = timed(echo), Step.START

    def __call__(self, line: str) -> None:
        """Print a step, or a line about one."""
        if isinstance(line, Step):
            self._step = line
            self._echo(f"[{self._number:2}/{len(Step)}] {line}")
        else:
            self._echo(line)

    @property
    def _number(self) -> int:
        return list(Step).index(self._step) + 1

    def bar(self) -> str:
        """How many steps are done, and the current one."""
        done = self._number - 1
        filled = BAR_WIDTH * done // len(Step)
        return f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {done} of {len(Step)}  {self._step}"


class Waiting:
    """Prints every few seconds what the demo waits for, and for how long already."""

    def __init__(self, what: str, echo: Echo) -> None:
        self._what, self._echo = what, echo
        self._began = self._reported = time.monotonic()

    def report(self, progress: str = "") -> None:
        """Call it often; `progress` describes how far the operation is."""
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            details = f"; {progress}" if progress else ""
            self._echo(f"  waiting for {self._what}, {now - self._began:.0f} s so far{details}")


def problem(counts: Mapping[str, int]) -> str | None:
    """What a comparison found; `None`: nothing."""
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or None
