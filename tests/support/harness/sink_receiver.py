"""
A sink's target in memory, and what runs the sinks of a pipeline with it.

Tests read from a `Receiver` what was delivered, and plan for it what it refuses, what it delays and
what it fails with. `delivering` runs `sink run` in a thread of this process with a receiver in the
place of each sink's target; `letters` and `error` read what the log keeps of the sink `out`, and
`status_of` what a person is shown of any.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from pgstream_dagster.config import SinkConfig
from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.sinks import control, state, targets
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.base import NotNow, Refused, Verdicts
from tests.support.harness.background import in_thread
from tests.support.plugins.wait import until

TABLES: Final = (
    "create table t (id bigint primary key, note text)",
    "create table other (id bigint primary key)",
    "insert into t values (1, 'one'), (2, 'two')",
    "insert into other values (7)",
)
"""Two tables with rows, from which most tests of sinks begin."""


class Receiver:
    """A target in memory that fails when a test says so; it stands for any at-least-once sink."""

    keeps_cursor = False

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.verdicts: dict[tuple[str, ...], list[Refused | NotNow]] = {}
        self.is_open = threading.Event()
        self.errors = list[Exception]()  # that the next deliveries raise
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.check = lambda: None

    def open(self) -> None:
        self.is_open.set()

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        assert self.may_go_on.wait(60)
        if batch.changes and self.errors:
            raise self.errors.pop()
        failed: dict[int, Refused | NotNow] = {}
        keys = set[Any]()
        for index, change in enumerate(batch.changes):
            row = change.after or change.before or {}
            planned = self.verdicts.get(tuple(str(v) for v in row.values()))
            if change.key in keys:
                failed[index] = NotNow("an earlier change of its key failed")
            elif planned:
                failed[index] = planned.pop(0)
                keys.add(change.key)
            else:
                shown = {"op": change.op, "key": change.key, "before": change.before}
                self.received.append(shown | {"after": change.after, "place": change.place})
        return failed

    def close(self) -> None:
        self.is_open.clear()

    def wait_for(self, count: int) -> None:
        """Until so many changes were received; raises what ended the sinks."""

        def is_there() -> bool:
            self.check()
            return len(self.received) >= count

        until(is_there, progress=lambda: len(self.received))

    def ops(self) -> list[tuple[str, str | None]]:
        """Operation and key of what was received, in order."""
        return [(row["op"], (row["key"] or (None,))[0]) for row in self.received]


def with_sinks(pipeline: Pipeline, **sinks: dict[str, Any]) -> Pipeline:
    """With these sinks alone, written as in a pipeline file."""
    parsed = {name: SinkConfig.model_validate(sink) for name, sink in sinks.items()}
    return replace(pipeline, config=pipeline.config.model_copy(update={"sinks": parsed}))


def masking(pipeline: Pipeline, rule: dict[str, Any]) -> Pipeline:
    """With a sink `out` of `t`, whose column `note` has this rule."""
    mask = ModifierConfig.model_validate({"transform": {"public.t": {"note": rule}}})
    changed = pipeline.config.model_copy(update={"modifiers": {"mask": mask}})
    sink = {"stdout": {}, "tables": ["t"], "modifiers": ["mask"]}
    return with_sinks(replace(pipeline, config=changed), out=sink)


@contextmanager
def delivering(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, **receivers: Receiver
) -> Iterator[None]:
    """The sinks run in a thread; each delivers to the receiver of its name."""
    monkeypatch.setattr(
        targets, "target", lambda _pipeline, name, _config, _environment: receivers[name]
    )
    with in_thread(lambda stop: sinks_run.run(pipeline, stop=stop), "sinks") as check:
        for receiver in receivers.values():
            receiver.check = check
        yield


def letters(pipeline: Pipeline) -> list[tuple[str | None, str, str]]:
    """Key, state and reason of the dead letters of the sink `out` that are open."""
    with sinks_run.opened(pipeline) as session:
        pending = session.letters.open("out")
    return [((le.key or (None,))[0], le.state.value, le.reason) for le in pending]


def error(pipeline: Pipeline) -> str | None:
    """What is wrong with the sink `out`, as its progress has it."""
    with sinks_run.opened(pipeline) as session:
        return state.progress(session.log, "out").error


def status_of(pipeline: Pipeline, sink: str) -> control.SinkStatus:
    """What `pgstream sink status` shows of a sink."""
    [shown] = control.sink_status(pipeline, [sink])
    return shown
