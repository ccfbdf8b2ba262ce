"""A target against the log, at the position that the target has: every difference is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgstream_dagster.config import PipelineConfig, SinkConfig
from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.errors import NotComparable
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.differences import TableDifference
from pgstream_dagster.upkeep.reconcile import Reconciliation
from pgstream_dagster.upkeep.reconcile_sink import reconcile_sink
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness.replica import deliver, delivering, environment
from tests.support.harness.runner import catch_up, new_pipeline, streaming
from tests.support.plugins.cluster import psql

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

TABLES = (
    "create type mood as enum ('low', 'high')",
    "create type pair as (a int, b text)",
    (
        "create table types (id int primary key, a int[], n numeric, t timestamptz, d date,"
        " b bytea, j jsonb, m mood, ms mood[], p pair, r tstzrange, f float8,"
        " g numeric generated always as (n * 2) stored)"
    ),
    (
        "insert into types values (1, '[0:1]={1,NULL}', 'NaN', 'infinity', '-infinity',"
        " '\\x00ff5c', '{\"a\": 1234567890123456789}', 'high', '{low,NULL}',"
        " '(1,\"x \"\"y\"\"\")', '[2024-01-01,)', '-0'),"
        " (2, '{}', 12345678901234567890.1234567891, '0044-03-15 BC', 'infinity', '',"
        " 'null', null, null, null, 'empty', 5e-324)"
    ),
    "create table people (id int primary key, email text, secret text, age int)",
    (
        "insert into people select n, 'p' || n || '@example.com', 'no', n"
        " from generate_series(1, 50) n"
    ),
    "create table bag (a int, b text)",
    "alter table bag replica identity full",
    "insert into bag select n % 3, null from generate_series(1, 30) n",
    "create table parted (id int primary key, v text) partition by range (id)",
    "create table parted_1 partition of parted for values from (0) to (100)",
    "create table parted_2 partition of parted for values from (100) to (200)",
    "insert into parted select n, 'v' from generate_series(1, 150) n",
    "create table nothing (id int primary key)",
)

WORK = (
    "update people set email = 'new' || id where id < 10",
    "update people set id = id + 100 where id > 45",
    "delete from people where id = 20",
    "alter table people rename age to years",
    "alter table people add column note text default 'none'",
    "insert into people values (300, 'x', 'y', 7)",
    "delete from bag where ctid = (select min(ctid) from bag)",
    "update bag set b = '' where a = 1",
    "update types set n = n + 1",
    "truncate nothing",
)

MASK = ModifierConfig.model_validate(
    {
        "transform": {"public.people": {"email": {"name": "hash"}, "id": {"name": "noop"}}},
        "drop": {"public.people": ["secret"]},
    }
)

__all__ = ["environment"]  # a fixture

NAMES = ["public.bag", "public.nothing", "public.parted", "public.people", "public.types"]


def pipeline_of(dsn: str, folder: Path, *, masked: bool = False, **sink: Any) -> Pipeline:
    psql(dsn, *TABLES)
    made = new_pipeline(dsn, folder)
    sink = {"postgres": {"dsn_variable": "REPLICA_DSN"}, **sink}
    config = {
        "sinks": {
            "replica": SinkConfig.model_validate(
                sink | ({"modifiers": ["mask"]} if masked else {})
            ),
            "lines": SinkConfig.model_validate({"stdout": {}}),
        },
        "modifiers": {"mask": MASK},
    }
    assert isinstance(made.config, PipelineConfig)
    return replace(made, config=made.config.model_copy(update=config))


def differences(done: Reconciliation) -> dict[str, TableDifference | None]:
    return {table.table: table.difference for table in done.tables if not table.identical}


def test_variables_are_those_of_the_pipeline_and_not_of_the_process(
    dsn: str, replica: str, tmp_path: Path, spark: object
) -> None:
    pipeline = replace(pipeline_of(dsn, tmp_path), environment={"REPLICA_DSN": replica})
    setup(pipeline)
    with pytest.raises(NotComparable, match="received nothing"):
        reconcile_sink(pipeline, "replica")


@pytest.mark.long
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_every_planted_difference_is_found_and_a_sound_target_has_none(
    dsn: str,
    replica: str,
    tmp_path: Path,
    spark: object,
    environment: dict[str, str],
    masked: bool,
) -> None:
    pipeline = pipeline_of(dsn, tmp_path, masked=masked)
    setup(pipeline)
    with pytest.raises(NotComparable, match="received nothing"):
        reconcile_sink(pipeline, "replica", environment=environment)
    deliver(pipeline, environment)
    with streaming(pipeline), delivering(pipeline, environment):
        psql(dsn, *WORK)
        while_both_go_on = reconcile_sink(pipeline, "replica", environment=environment)
    assert [table.table for table in while_both_go_on.tables] == NAMES
    assert while_both_go_on.identical, while_both_go_on
    catch_up(pipeline)
    deliver(pipeline, environment)
    done = reconcile_sink(pipeline, "replica", environment=environment)
    assert done.identical, done
    assert sum(table.source_rows for table in done.tables) == 2 + 50 + 29 + 150
    if masked:
        [(mail,)] = psql(replica, "select email from people where id = 5")
        assert mail != "new5"
    psql(
        replica,
        "update people set email = null where id = 1",
        "update people set years = 0, note = '' where id = 300",
        "delete from people where id = 3",
        "insert into people (id, email) values (900, 'x')",
        "update types set b = '\\x00', r = '(2024-01-01,)' where id = 1",
        "insert into bag values (1, '')",
        "update parted set id = 160 where id = 7",
        "insert into nothing values (1)",
    )
    done = reconcile_sink(pipeline, "replica", environment=environment)
    assert differences(done) == {
        "public.bag": TableDifference(30, 29, only_in_source_count=1),
        "public.nothing": TableDifference(1, 0, 1, only_in_source=(("1",),)),
        "public.parted": TableDifference(
            *(150, 150, 1, 1), only_in_source=(("160",),), only_in_log=(("7",),)
        ),
        "public.people": TableDifference(
            *(50, 50, 1, 1, 2),
            only_in_source=(("900",),),
            only_in_log=(("3",),),
            differing=((("1",), ("email",)), (("300",), ("note", "years"))),
        ),
        "public.types": TableDifference(2, 2, 0, 0, 1, differing=((("1",), ("b", "r")),)),
    }
    psql(replica, "alter table parted drop column v", "drop table nothing")
    done = reconcile_sink(pipeline, "replica", NAMES[1:3], environment=environment)
    [nothing, parted] = done.tables
    assert (nothing.identical, nothing.reason) == (
        False,
        "the target has no table 'public.nothing'",
    )
    assert parted.difference is not None
    assert parted.difference.differing_count == 149
    assert not list((tmp_path / "lake").glob("reconcile-*"))


@pytest.mark.long
def test_the_target_is_compared_at_its_own_position(
    dsn: str, replica: str, tmp_path: Path, spark: object, environment: dict[str, str]
) -> None:
    pipeline = pipeline_of(dsn, tmp_path)
    setup(pipeline)
    deliver(pipeline, environment)
    psql(dsn, *WORK, "alter table people drop column note")
    catch_up(pipeline)
    snapshot(pipeline, ["public.people"])
    behind = reconcile_sink(pipeline, "replica", environment=environment)
    assert behind.identical, behind
    assert {t.table: t.source_rows for t in behind.tables}["public.people"] == 50
    psql(dsn, "insert into people values (1000)")
    catch_up(pipeline)
    deliver(pipeline, environment)
    done = reconcile_sink(pipeline, "replica", environment=environment)
    assert done.identical, done
    assert done.consistent_point > behind.consistent_point


@pytest.mark.long
def test_what_cannot_be_compared_is_named(
    dsn: str, tmp_path: Path, spark: object, environment: dict[str, str]
) -> None:
    pipeline = pipeline_of(dsn, tmp_path, tables=["bag"])
    setup(pipeline)
    with pytest.raises(NotComparable, match="type 'stdout'"):
        reconcile_sink(pipeline, "lines", environment=environment)
    deliver(pipeline, environment)
    with pytest.raises(NotComparable, match=r"not received table 'people'; it has public\.bag"):
        reconcile_sink(pipeline, "replica", ["people"], environment=environment)
