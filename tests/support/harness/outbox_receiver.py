"""A pipeline of events whose target is in memory, and may be away or refuse some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks.base import NotNow, Refused
from tests.support.harness.outbox_writers import with_outbox
from tests.support.harness.runner import new_pipeline
from tests.support.harness.sink_receiver import Receiver, with_sinks
from tests.support.plugins.wait import until

SINK: Final = {"stdout": {}, "outbox": {"stream": 1}}
"""A sink of stream 1."""


def outbox_pipeline(dsn: str, folder: Path, **sinks: Any) -> Pipeline:
    """A pipeline of a database with the outbox; its sinks are these, or `out` of stream 1."""
    with_outbox(dsn)
    return with_sinks(new_pipeline(dsn, folder), **sinks or {"out": SINK})


class Events(Receiver):
    """Takes events, and keeps the numbers and positions of those it took; it may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = list[int]()
        self.commits = list[int]()
        self.planned: dict[int, list[Refused | NotNow]] = {}
        self.takes: int | None = None
        """How many events it takes before it is away; `None`: all."""
        self.attempts = 0

    def deliver(self, batch: Any) -> Any:
        self.attempts += bool(batch.changes)
        failed: dict[int, Refused | NotNow] = {}
        held = set[Any]()
        for index, change in enumerate(batch.changes):
            number = json.loads(change.payload)["n"]
            if self.takes is not None and len(self.numbers) >= self.takes:
                failed[index] = NotNow("away", is_away=True)
            elif change.key in held:
                failed[index] = NotNow("behind", is_behind=True)
            elif self.planned.get(number):
                failed[index] = self.planned[number].pop(0)
                held.add(change.key)
            else:
                self.numbers.append(number)
                self.commits.append(change.commit_lsn)
        return failed

    def wait_for_numbers(self, *numbers: int) -> None:
        """Until these were delivered; and no other, in this order."""

        def is_there() -> bool:
            self.check()
            return len(self.numbers) >= len(numbers)

        until(is_there, progress=lambda: self.numbers)
        assert self.numbers == list(numbers)

    def wait_for_attempts(self, count: int) -> None:
        """Until so many more batches were offered, and not taken."""
        goal = self.attempts + count
        until(lambda: self.attempts >= goal, progress=lambda: self.attempts)
