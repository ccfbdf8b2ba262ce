"""What `pgstream status` shows of every reader of the log, and the command that each one needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.errors import NotSetUp, SearchUnreachable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.search.control import State
from pgstream_dagster.search.index_status import AliasStatus, GenerationStatus
from pgstream_dagster.sinks.control import SinkStatus
from pgstream_dagster.upkeep import readers
from pgstream_dagster.upkeep.readers import ReaderStatus, reader_status

LIVE = GenerationStatus("orders-000002", State.LIVE, Lsn(300), 20, 99, 0, None)
KEPT = replace(LIVE, index="orders-000001", state=State.KEPT, delivered=Lsn(310))
SINK = SinkStatus(
    sink="events",
    target="files",
    position=Lsn(310),
    lag_bytes=10,
    lag_seconds=1.5,
    delivered_commit_at=None,
    changes=7,
    refused=0,
    held=0,
    is_running=True,
    is_paused=False,
    error=None,
    health={},
)


class FakePipeline:
    """A pipeline whose file names an index and a sink."""

    lake = Lake("/tmp")

    def __init__(self, error: Exception | None = None) -> None:
        self._error, self.config = error, self
        self.search, self.sinks, self.tables = {"orders": None}, {"events": None}, None

    def require_set_up(self) -> None:
        if self._error is not None:
            raise self._error


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch):
    """The readers as `reader_status` shows them, of these indices and sinks."""

    def answer(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def status(
        indices: list[AliasStatus] | Exception, sinks: list[SinkStatus] | Exception
    ) -> tuple[ReaderStatus, ...]:
        monkeypatch.setattr(readers, "index_status", lambda _: answer(indices))
        monkeypatch.setattr(readers, "sink_status", lambda _: answer(sinks))
        return reader_status(FakePipeline())  # type: ignore[arg-type]

    return status


def orders(*generations: GenerationStatus, problem: str | None = None) -> AliasStatus:
    return AliasStatus("orders", "public.orders", generations, problem)


def test_indices_come_first_and_then_sinks_with_what_both_have(shown) -> None:
    assert shown([orders(KEPT, LIVE)], [SINK]) == (
        ReaderStatus("orders", "index", "live", Lsn(300), 20),
        ReaderStatus("events", "sink", "running", Lsn(310), 10, 1.5),
    )


def test_what_cannot_be_asked_is_unknown_with_the_reason_and_hides_no_other(shown) -> None:
    away = SearchUnreachable("http://search:9200", "refused")
    index, sink = shown(away, [SINK])
    assert (index.state, index.error, sink.state) == ("unknown", str(away), "running")
    index, sink = shown([orders(LIVE)], away)
    assert (index.state, sink.reader, sink.error) == ("live", "events", str(away))


@pytest.mark.parametrize(
    ("generations", "state", "refused", "step"),
    [
        ((), "none yet", 0, "pgstream index run"),
        ((replace(LIVE, refused=3),), "live", 3, "pgstream redrive orders"),
        ((replace(LIVE, refused=3, outdated="a"),), "live", 3, "pgstream reindex orders"),
    ],
)
def test_index_names_its_next_step(shown, generations, state, refused, step) -> None:
    index, _ = shown([orders(*generations)], [SINK])
    assert (index.state, index.refused, index.next_step) == (state, refused, step)


@pytest.mark.parametrize(
    ("changes", "state", "step"),
    [
        ({"is_running": False}, "not running", "pgstream sink run events"),
        ({"is_paused": True, "refused": 1}, "paused", "pgstream sink resume events"),
        ({"refused": 1, "held": 2}, "running", "pgstream sink letters events"),
        ({"error": "it is away"}, "waiting", None),
        ({"error": "it is away", "is_running": False}, "failed", None),
    ],
)
def test_sink_names_its_next_step(shown, changes, state, step) -> None:
    _, sink = shown([orders(LIVE)], [replace(SINK, **changes)])
    assert (sink.state, sink.next_step) == (state, step)
    assert sink.refused == changes.get("refused", 0) + changes.get("held", 0)


def test_reader_of_a_webhook_is_named_with_its_subscription_and_its_command_without(shown) -> None:
    _, sink = shown([orders(LIVE)], [replace(SINK, sink="events.partner", is_running=False)])
    assert (sink.reader, sink.next_step) == ("events.partner", "pgstream sink run events")


def test_pipeline_that_is_not_set_up_has_no_readers() -> None:
    assert reader_status(FakePipeline(NotSetUp("shop", "lake"))) == ()  # type: ignore[arg-type]
