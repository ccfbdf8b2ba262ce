"""
Sinks of other packages: whatever goes wrong in their code has a name, and ends no other sink.

What they raise is reported by type and place. Its text is not: it may have values of rows.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import cast

import msgspec

from pgstream_dagster.config.plugins import Installed
from pgstream_dagster.errors import PgstreamError, SinkPackageFailed
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks.base import NotNow, Refused, Sink, SinkContext, Verdicts
from pgstream_dagster.sinks.held_keys import HeldKeys

logger = logging.getLogger(__name__)


def package_sink(
    pipeline: str, name: str, installed: Installed, environment: Mapping[str, str]
) -> Sink:
    """
    The sink that an installed package makes of its settings.

    Raises:
        SinkPackageFailed
    """
    context = SinkContext(pipeline, name, environment)
    with _named(name, installed.package):
        return PackageSink(name, installed.package, installed.make(installed.settings, context))


class PackageSink:
    """A sink of another package, held to the contract."""

    def __init__(self, name: str, package: str, sink: Sink) -> None:
        self._name, self._package, self._sink = name, package, sink

    @property
    def keeps_cursor(self) -> bool:
        """As the sink says; not, unless it says so."""
        with _named(self._name, self._package):
            return bool(getattr(self._sink, "keeps_cursor", False))

    def open(self) -> str | None:
        """Open the sink; raises its errors of ours, and `SinkPackageFailed` for others."""
        with _named(self._name, self._package):
            cursor = self._sink.open()
        if cursor is not None and not _is_cursor(cursor):
            problem = "open returned a text that is no cursor of a batch; None stands for none"
            raise SinkPackageFailed(self._name, self._package, problem)
        return cursor

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Deliver a batch; raises its errors of ours, and `SinkPackageFailed` for others."""
        with _named(self._name, self._package):
            verdicts = self._sink.deliver(batch)
        if (problem := _problem(verdicts, batch)) is not None:
            raise SinkPackageFailed(self._name, self._package, problem)
        return verdicts

    def close(self) -> None:
        """Close the sink; what it raises is logged."""
        try:
            with _named(self._name, self._package):
                self._sink.close()
        except PgstreamError as error:
            logger.warning("%s", error)


def _problem(verdicts: object, batch: ChangeBatch) -> str | None:
    """What is wrong with the answer of `deliver` to a batch."""
    if not isinstance(verdicts, Mapping):
        return f"deliver returned {type(verdicts).__name__}, not a mapping of index to verdict"
    for index, verdict in verdicts.items():
        if type(index) is not int or not 0 <= index < len(batch.changes):
            return f"deliver returned a verdict on {index!r}, which is no index of its batch"
        if (problem := _verdict_problem(verdict)) is not None:
            return problem
    if verdicts and all(isinstance(v, NotNow) and v.is_behind for v in verdicts.values()):
        return "deliver returned changes that are behind others, and no other that failed"
    if _overtakes(verdicts, batch):
        return "deliver left out a change, but not the later ones of its key (see deliver_each)"
    return None


def _verdict_problem(verdict: object) -> str | None:
    """What is wrong with a verdict; its parts are as the package has made them."""
    if not isinstance(verdict, (Refused, NotNow)):
        return f"deliver returned {type(verdict).__name__}, which is no Refused or NotNow"
    reason = cast("object", verdict.reason)
    wait = cast("object", verdict.wait_seconds) if isinstance(verdict, NotNow) else None
    if not isinstance(reason, str):
        return f"deliver returned a verdict whose reason is {type(reason).__name__}, not str"
    if wait is not None and not (isinstance(wait, (int, float)) and math.isfinite(wait)):
        return f"deliver returned a NotNow whose wait_seconds is {wait!r}, no finite number"
    return None


def _is_cursor(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(Cursor.from_json(text))
    except msgspec.MsgspecError:
        return False


def _overtakes(verdicts: Mapping[int, object], batch: ChangeBatch) -> bool:
    """Whether a change counts as delivered that is behind another one of its key."""
    failed = HeldKeys()
    for index, change in enumerate(batch.changes):
        if index in verdicts:
            failed.hold(change)
        elif failed and failed.holds(change):
            return True
    return False


@contextmanager
def _named(sink: str, package: str) -> Generator[None]:
    try:
        yield
    except PgstreamError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}"
        logger.warning("sink %r: %s in\n%s", sink, type(error).__name__, "".join(frames.format()))
        reason = f"{type(error).__name__} in {place}"
        raise SinkPackageFailed(sink, package, reason) from error
