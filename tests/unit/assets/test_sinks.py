"""What the job `sinks` reports of each sink, and when."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.reporter import ProgressReport
from pgstream_dagster.assets.sinks import progress_reports
from pgstream_dagster.errors import LakeAway
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks.state import Progress


class FakePipeline:
    """A pipeline whose log is at a watermark; `None`: its lake is away."""

    def __init__(self, watermark: int | None) -> None:
        self._watermark = watermark

    @contextmanager
    def open(self):
        if self._watermark is None:
            raise LakeAway("lake")
        yield SimpleNamespace(watermark=lambda: Lsn(self._watermark or 0))


def reports(watermark: int | None = 100, **progress: Progress) -> list[ProgressReport]:
    named = {name.replace("__", "."): state for name, state in progress.items()}
    return list(progress_reports(Names(), FakePipeline(watermark), named))  # type: ignore[arg-type]


def report(watermark: int | None = 100, **state: Any) -> ProgressReport:
    [only] = reports(watermark, events=Progress(**state))
    return only


def at(watermark: int) -> Cursor:
    return Cursor(1, 1, Lsn(watermark))


def test_sink_that_has_not_begun_reports_nothing() -> None:
    assert reports(events=Progress()) == []


def test_sink_reports_its_position_counts_and_lag_of_this_moment() -> None:
    facts = report(cursor=at(100), changes=7, refused=2).metadata()
    assert (facts["delivered"], facts["delivered_lsn"]) == ("0/64", 100)
    assert (facts["changes"], facts["dead_letters"], facts["errors"]) == (7, 2, "")
    assert (facts["lag_bytes"], facts["lag_seconds"]) == (0, 0.0)
    assert report(150, cursor=at(100), current_at=1.0).metadata()["lag_bytes"] == 50


def test_reason_why_a_sink_has_never_delivered_is_worth_an_event() -> None:
    failed = report(error="it is away")
    assert failed.metadata()["errors"] == "it is away"
    marks = [report(cursor=at(0)), failed, report(error="another"), report(cursor=at(1))]
    assert len({0, *(entry.mark for entry in marks)}) == 5


def test_webhook_reports_its_subscription_furthest_behind() -> None:
    [only] = reports(
        hooks__a=Progress(cursor=at(90), changes=1, error="a is away"),
        hooks__b=Progress(cursor=at(70), changes=2, error="b is away"),
    )
    facts = only.metadata()
    assert (facts["delivered_lsn"], facts["lag_bytes"], facts["changes"]) == (70, 30, 3)
    assert facts["errors"] == "a is away; b is away"


def test_lake_that_is_away_leaves_only_the_lag_out() -> None:
    facts = report(None, cursor=at(90)).metadata()
    assert facts["delivered_lsn"] == 90
    assert "lag_bytes" not in facts
