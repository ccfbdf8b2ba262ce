"""Tables that lose what capture needs while the stream runs: named at once, whole again later."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster import heartbeat
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.publication import MARK
from pgstream_dagster.upkeep.status import status
from tests.support.harness import rows, runner
from tests.support.harness.stream_pipelines import (
    FULL,
    TABLE,
    TREE,
    publication_name,
    set_up_pipeline,
    set_up_table,
    wait_for_copies,
    wait_until_landed,
)
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.slow


def reported(pipeline: Pipeline) -> list[str]:
    sign = heartbeat.read(pipeline.heartbeat_file)
    return [] if sign is None else sign.facts["unfit_tables"] or []


def wait_until_named(pipeline: Pipeline, *words: str) -> None:
    """In the heartbeat of the stream, in `status`, and in no other sentence."""

    def is_named() -> bool:
        return [all(word in problem for word in words) for problem in reported(pipeline)] == [True]

    until(is_named, seconds=runner.END_SECONDS, every=0.2)
    assert list(status(pipeline).unfit_tables) == reported(pipeline)


def wait_until_all_fit(pipeline: Pipeline) -> None:
    until(lambda: not reported(pipeline), seconds=runner.END_SECONDS, every=0.2)
    assert status(pipeline).unfit_tables == ()


@pytest.mark.long
def test_an_unlogged_partition_is_named_and_copied_once_it_is_logged(
    dsn: str, tmp_path: Path
) -> None:
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    with runner.streaming(pipeline):
        psql(
            dsn,
            "create unlogged table t3 (like t including all)",
            "alter table t attach partition t3 for values from (20) to (30)",
        )
        wait_until_named(pipeline, "'public.t3'", "not in the WAL", "set logged")
        wait_for_copies(pipeline, "t")
        psql(dsn, "insert into t values (21, 'not in the WAL')")
        psql(dsn, "alter table t3 set logged", "insert into t values (22, 'in the WAL')")
        wait_for_copies(pipeline, "t", copies=3)
        wait_until_all_fit(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 3


@pytest.mark.long
def test_a_captured_table_that_is_unlogged_is_named_and_copied_once_it_is_logged(
    dsn: str, tmp_path: Path
) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        psql(dsn, "alter table t set unlogged", "update t set x = 'not in the WAL'")
        wait_until_named(
            pipeline, "'public.t'", "not in the WAL", "alter table public.t set logged"
        )
        psql(dsn, "alter table t set logged")
        wait_for_copies(pipeline, "t")
        wait_until_all_fit(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
def test_a_foreign_partition_is_named_until_it_is_detached(dsn: str, tmp_path: Path) -> None:
    name = publication_name(dsn, tmp_path)
    psql(
        dsn,
        "create table t (id bigint, x text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        "alter table t replica identity full",
        "alter table t1 replica identity full",
        f"create publication {name} for table t {FULL}",
    )
    pipeline = set_up_table(dsn, tmp_path, table=())
    with runner.streaming(pipeline):
        psql(
            dsn,
            "create foreign data wrapper none",
            "create server elsewhere foreign data wrapper none",
            "create foreign table t2 partition of t for values from (10) to (20) server elsewhere",
        )
        wait_until_named(pipeline, "'public.t2'", "foreign", "detach partition")
        psql(dsn, "alter table t detach partition t2", "insert into t values (2, 'b')")
        wait_until_all_fit(pipeline)
        wait_until_landed(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


@pytest.mark.long
def test_a_new_table_without_a_key_is_named_until_it_has_one(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, "create table u (id int, x text)", "insert into u values (1, 'a')")
        wait_until_named(pipeline, "'public.u'", "fail in your application", "add a primary key")
        psql(dsn, "alter table u add primary key (id)", "update u set x = 'b'")
        wait_until_all_fit(pipeline)
    runner.catch_up(pipeline)  # with one copy, or two when the first was made without the key
    assert rows.assert_log_folds_to_source(pipeline, ["t", "u"]) == 2


@pytest.mark.majors(until=17)  # 18 sends generated columns
def test_a_new_table_whose_key_is_not_sent_is_named_until_it_is_full(
    dsn: str, tmp_path: Path
) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(
            dsn,
            "create table u (a int, g int generated always as (x) stored, x int,"
            " primary key (a, g))",
            "insert into u values (1, default, 1), (1, default, 2)",
        )
        wait_until_named(pipeline, "'public.u'", "g of its key", "public.u replica identity full")
        psql(dsn, "update u set x = 3 where x = 2", "delete from u where x = 1")
        wait_until_landed(pipeline)
        psql(dsn, "alter table u replica identity full", "insert into u values (1, default, 1)")
        wait_until_all_fit(pipeline)
        psql(dsn, "update u set x = 4 where x = 1", "delete from u where x = 3")
    runner.catch_up(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t", "u"]) == 2


@pytest.mark.majors(since=18)  # NOT NULL ... NOT VALID
def test_a_table_whose_key_may_be_null_keeps_all_its_rows(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(
            dsn,
            "create table u (k int, x text)",
            "insert into u values (null, 'a'), (null, 'b'), (3, 'c')",
            "create unique index i on u (k)",
            "alter table u add constraint n not null k not valid",
            "alter table u replica identity using index i",
        )
        wait_until_named(pipeline, "'public.u'", "validate constraint n")
        psql(dsn, "delete from u where x = 'a'", "update u set x = 'd' where k = 3")
        wait_until_landed(pipeline)
    runner.catch_up(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t", "u"]) == 3


def test_a_table_that_loses_its_identity_is_named(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, "alter table t replica identity nothing", "insert into t values (2, 'b')")
        wait_until_named(pipeline, "'public.t'", "replica identity NOTHING")
        psql(dsn, "alter table t replica identity default", "update t set x = 'c'")
        wait_until_all_fit(pipeline)
    runner.catch_up(pipeline)  # with one copy, or two when the first was made in between
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


def test_a_table_without_a_key_that_a_list_leaves_out_is_named(dsn: str, tmp_path: Path) -> None:
    name = publication_name(dsn, tmp_path)
    psql(
        dsn,
        TABLE,
        "create table u (id int)",
        f"create publication {name} for table t {FULL}",
        f"comment on publication {name} is $${MARK}$$",
    )
    pipeline = set_up_table(dsn, tmp_path, table=())
    with runner.streaming(pipeline):
        wait_until_named(pipeline, "'public.u'", "is left out")


@pytest.mark.long
def test_a_row_filter_that_would_hide_values_is_named_and_its_gap_copied(
    dsn: str, tmp_path: Path
) -> None:
    name = publication_name(dsn, tmp_path)
    psql(
        dsn,
        "create table t (id int, shown bool, x text, primary key (id, shown))",
        "alter table t alter x set storage external",
        "insert into t values (1, true, 'copied'), (2, false, repeat('long', 1000))",
        f"create publication {name} for table t {FULL}",
    )
    pipeline = set_up_pipeline(dsn, tmp_path)
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        psql(dsn, f"alter publication {name} set table t where (shown)")
        wait_until_named(pipeline, "'public.t'", "row filter", "replica identity full")
        wait_for_copies(pipeline, "t")
        psql(dsn, "update t set shown = true where id = 2")
        wait_for_copies(pipeline, "t", copies=3)
        psql(dsn, "alter table t replica identity full")
        wait_until_all_fit(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2
