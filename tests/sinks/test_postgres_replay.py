"""A replay would take rows of a target back to former values; a reset writes them again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgstream_dagster import Pipeline
from pgstream_dagster.errors import ReplayRefused
from pgstream_dagster.sinks.control import redrive, replay, reset, sink_letters, sink_status
from tests.support.harness.replica import cursor_of, delivering, environment, made
from tests.support.harness.runner import catch_up
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

__all__ = ["environment"]  # a fixture

FILE = """
pipeline: {name}
source: {{tables: [people, bag]}}
sinks:
  replica:
    postgres: {{dsn_variable: REPLICA_DSN}}
"""

TABLES = (
    "create table people (id int primary key, name text)",
    "insert into people select n, 'n' || n from generate_series(1, 9) n",
    "create table bag (a int, b text)",
    "alter table bag replica identity full",
    "insert into bag select 1, 'same' from generate_series(1, 5)",
)


@pytest.mark.long
def test_a_replay_is_refused_and_a_reset_gives_the_rows_of_the_source(
    dsn: str, tmp_path: Path, spark: object, replica: str, environment: dict[str, str]
) -> None:
    psql(dsn, *TABLES)
    pipeline = made(dsn, tmp_path, environment, FILE)
    with pipeline.open() as opened:
        start = str(opened.require_watermark())
    psql(dsn, "update people set name = 'new' where id = 1", "insert into bag values (2, 'ice')")
    psql(dsn, "delete from people where id = 2")
    catch_up(pipeline)
    with delivering(pipeline, environment):
        until(lambda: rows(replica) == rows(dsn))
    with pytest.raises(ReplayRefused, match="'pgstream sink reset replica --from start'"):
        replay(pipeline, "replica", "start", start, ("people",))
    with pytest.raises(ReplayRefused, match="'pgstream sink reset replica --from start'"):
        reset(pipeline, "replica", start)
    with pytest.raises(ReplayRefused):  # later changes of a key were delivered
        redrive(skipping(pipeline), "replica")
    assert rows(replica) == rows(dsn)
    psql(replica, "delete from people where id > 5", "update people set name = 'x'")
    reset(pipeline, "replica", "start")
    with delivering(pipeline, environment):
        until(lambda: generation(replica) == 2)
        until(lambda: rows(replica) == rows(dsn))
    assert sink_letters(pipeline, "replica") == []
    [status] = redrive(pipeline, "replica")
    assert (status.refused, status.error) == (0, None)


@pytest.mark.long
def test_a_target_that_was_made_again_receives_nothing_until_a_reset(
    dsn: str, tmp_path: Path, spark: object, replica: str, environment: dict[str, str]
) -> None:
    psql(dsn, *TABLES)
    pipeline = made(dsn, tmp_path, environment, FILE)
    with delivering(pipeline, environment):
        until(lambda: rows(replica) == rows(dsn))
    psql(replica, "drop schema public cascade", "create schema public")
    psql(replica, "drop schema pgstream cascade")
    psql(dsn, "update people set name = 'new' where id = 1")
    catch_up(pipeline)
    with delivering(pipeline, environment):
        until(lambda: "has no progress of it" in (sink_status(pipeline)[0].error or ""))
        assert not any(rows(replica))
        reset(pipeline, "replica", "start")
        until(lambda: rows(replica) == rows(dsn), seconds=120)
    assert sink_letters(pipeline, "replica") == []


def skipping(pipeline: Pipeline) -> Pipeline:
    [sink] = pipeline.config.sinks.values()
    sinks = {"replica": sink.model_copy(update={"on_failure": "skip"})}
    return replace(pipeline, config=pipeline.config.model_copy(update={"sinks": sinks}))


def rows(dsn: str) -> list[object]:
    if psql(dsn, "select to_regclass('bag') is null or to_regclass('people') is null")[0][0]:
        return []
    return [psql(dsn, f"select * from {table} order by 1, 2") for table in ("people", "bag")]


def generation(replica: str) -> int | None:
    cursor = cursor_of(replica)
    return None if cursor is None else cursor.generation
