"""`pgstream tail`: the changes from a start, a position or a time on, and those that arrive."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pgstream_dagster import setup
from pgstream_dagster.errors import InvalidPosition
from pgstream_dagster.sinks.tail import tail
from tests.support.harness.background import in_thread
from tests.support.harness.runner import catch_up, new_pipeline
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


def test_tail_begins_at_the_position_it_is_given(dsn: str, tmp_path: Path, spark: object) -> None:
    psql(dsn, "create table t (id int primary key)", "insert into t values (1)")
    psql(dsn, "create table other (id int primary key)", "insert into other values (7)")
    pipeline = new_pipeline(dsn, tmp_path)
    setup(pipeline)
    psql(dsn, "insert into t values (2)", "insert into other values (8)")
    catch_up(pipeline)
    with pipeline.open() as opened:
        position = str(opened.require_watermark())
    [(time,)] = psql(dsn, "select clock_timestamp()")
    psql(dsn, "insert into t values (3)")
    catch_up(pipeline)

    @contextmanager
    def tailing(start: str, count: int):
        lines = list[str]()

        def run(stop: threading.Event) -> None:
            tail(pipeline, ["t"], start=start, write=lines.append, stop=stop)

        with in_thread(run, "tail") as check:
            yield lines
            until(lambda: check() or len(lines) >= count)

    def keys(lines: list[str]) -> list[str]:
        return [line.partition("(")[2].partition(")")[0] for line in lines]

    with tailing("start", 3) as lines:
        pass
    assert keys(lines) == ["1", "2", "3"]
    for start in (position, time.astimezone(UTC).isoformat()):
        with tailing(start, 1) as lines:
            pass
        assert keys(lines) == ["3"]
    with pytest.raises(InvalidPosition):
        tail(pipeline, start="yesterday", write=print, stop=threading.Event())
    assert isinstance(time, datetime)
