"""What was changed and changed back in the catalog, while nobody looked, costs no change."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgstream_dagster.capture.stream import stream
from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.errors import PublicationIncomplete, PublicationMissing
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.status import status
from tests.support.harness import rows, runner
from tests.support.harness.stream_pipelines import (
    FULL,
    TABLE,
    TREE,
    copies_of,
    publication_name,
    set_up_table,
    wait_for_copies,
    wait_until_landed,
    wait_until_recopier_polled,
)
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.slow


def wait_until_blocked_by(dsn: str, connection: psycopg.Connection[Any]) -> None:
    pid = connection.info.backend_pid
    asked = f"select pid from pg_stat_activity where {pid} = any(pg_blocking_pids(pid))"
    until(lambda: psql(dsn, asked), seconds=runner.END_SECONDS, every=0.2)


def stream_ended_by(pipeline: Pipeline, *statements: str) -> None:
    with runner.streaming(pipeline) as check:
        wait_until_landed(pipeline)
        psql(pipeline.dsn, *statements)
        until(check, seconds=runner.END_SECONDS)


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        (
            "alter publication {p} set (publish = 'insert'); update t set x = 'lost';"
            " alter publication {p} set (publish = 'insert, update, delete, truncate')"
        ),
        "alter publication {p} drop table t; delete from t; alter publication {p} add table t",
    ],
)
def test_what_a_publication_hid_for_a_while_is_copied(
    dsn: str, tmp_path: Path, change: str
) -> None:
    name = publication_name(dsn, tmp_path)
    psql(dsn, TABLE, f"create publication {name} for table t {FULL}")
    pipeline = set_up_table(dsn, tmp_path, table=())
    psql(dsn, *change.format(p=name).split("; "), "insert into t values (2, 'b')")
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    rows.assert_log_folds_to_source(pipeline, ["t"])


@pytest.mark.long
def test_what_was_not_in_the_wal_for_a_while_is_copied(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "alter table t set unlogged", "update t set x = 'lost'", "alter table t set logged")
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        (
            "alter publication {p} drop tables in schema public; update t set x = 'lost';"
            " alter publication {p} add tables in schema public"
        ),
        (
            "alter table t set schema away; update away.t set x = 'lost';"
            " alter table away.t set schema public"
        ),
    ],
)
def test_what_was_outside_of_a_published_schema_for_a_while_is_copied(
    dsn: str, tmp_path: Path, change: str
) -> None:
    name = publication_name(dsn, tmp_path)
    psql(
        dsn, TABLE, f"create publication {name} for tables in schema public {FULL}",
        "create schema away",
    )  # fmt: skip
    pipeline = set_up_table(dsn, tmp_path, table=())
    psql(dsn, *change.format(p=name).split("; "))
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


def test_a_tree_whose_leaves_were_published_for_a_while_is_copied(dsn: str, tmp_path: Path) -> None:
    name = publication_name(dsn, tmp_path)
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    psql(
        dsn,
        f"alter publication {name} set (publish_via_partition_root = false)",
        "update t set x = 'lost'",
        f"alter publication {name} set (publish_via_partition_root = true)",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
def test_a_partition_that_was_detached_for_a_while_is_copied(dsn: str, tmp_path: Path) -> None:
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    psql(
        dsn,
        "alter table t detach partition t1",
        "update t1 set x = 'never sent under the root'",
        "alter table t attach partition t1 for values from (0) to (10)",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ("publish = 'insert'", "publish = 'insert, update, delete, truncate'"),
        ("publish_via_partition_root = false", "publish_via_partition_root = true"),
    ],
)
def test_a_publication_that_hides_changes_ends_the_stream_until_it_is_whole(
    dsn: str, tmp_path: Path, options: str, remedy: str
) -> None:
    name = publication_name(dsn, tmp_path)
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    set_remedy = f'alter publication "{name}" set ({remedy})'
    hidden = (f"alter publication {name} set ({options})", "update t set x = 'lost'")
    with pytest.raises(PublicationIncomplete) as raised:
        stream_ended_by(pipeline, *hidden)
    assert raised.value.statement == set_remedy
    with pytest.raises(PublicationIncomplete):
        stream(pipeline, stop=threading.Event())
    problem = status(pipeline).problem
    assert problem is not None
    assert problem.error == "PublicationIncomplete"
    psql(dsn, set_remedy)
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


def test_a_copy_made_while_the_publication_hid_changes_does_not_count(
    dsn: str, tmp_path: Path
) -> None:
    """Changes between that copy and the end of it were not sent."""
    name = publication_name(dsn, tmp_path)
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, f"alter publication {name} set (publish = 'insert')")
    snapshot(pipeline, ["public.t"])
    psql(
        dsn,
        "update t set x = 'lost'",
        f"alter publication {name} set (publish = 'insert, update, delete, truncate')",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t", copies=3)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("timestamp default '2024-02-29'", "alter table t alter v type timestamptz"),
        ("mood default 'a'", "alter type mood rename value 'a' to 'z'"),
        ("pair default '(1,a)'", "alter type pair add attribute x int"),
        ("regclass default 'other'", "alter table other rename to another"),
    ],
)
def test_values_that_read_otherwise_without_a_change_of_any_row_are_copied(
    dsn: str, tmp_path: Path, column: str, change: str
) -> None:
    psql(
        dsn,
        "create type mood as enum ('a')",
        "create type pair as (n int, m mood)",
        "create table other (id int primary key)",
        f"create table t (id int primary key, x text, v {column})",
    )
    pipeline = set_up_table(dsn, tmp_path, table=())
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        psql(dsn, "alter type mood add value 'b'", change)
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
def test_a_label_added_to_an_enum_costs_no_copy_until_it_is_renamed(
    dsn: str, tmp_path: Path
) -> None:
    psql(dsn, "create type mood as enum ('a')")
    pipeline = set_up_table(
        dsn, tmp_path, table=["create table t (id int primary key, x text, v mood)"]
    )
    with runner.streaming(pipeline):
        psql(dsn, "alter type mood add value 'b'", "insert into t values (2, 'x', 'b')")
        wait_until_recopier_polled(pipeline)
        assert copies_of(pipeline, "t") == 1
    psql(dsn, "alter type mood rename value 'b' to 'c'")
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        "alter type mood rename value 'a' to 'z'",
        "alter type pair add attribute x int",
        "alter table other rename to another",
    ],
)
def test_values_of_a_new_column_that_read_otherwise_before_the_next_look_are_copied(
    dsn: str, tmp_path: Path, change: str
) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    psql(
        dsn,
        "create type mood as enum ('a')",
        "create type pair as (n int, m text)",
        "create table other (id int primary key)",
        "alter table t add column m mood default 'a', add column p pair default '(1,a)',"
        " add column r regclass default 'other'",
        "insert into t values (2, 'before')",
        change,
        "alter table t alter column m drop default",
        "insert into t values (3, 'after')",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("column", "retyped"),
    [("timestamp default '2024-02-29'", "timestamptz"), ("oid default 3000000000", "int")],
)
def test_a_new_column_that_is_retyped_after_the_last_row_is_copied(
    dsn: str, tmp_path: Path, column: str, retyped: str
) -> None:
    pipeline = set_up_table(dsn, tmp_path)
    psql(
        dsn,
        f"alter table t add column v {column}",
        "insert into t values (2, 'before')",
        f"alter table t alter column v drop default, alter column v type {retyped}",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
        wait_until_recopier_polled(pipeline)
    assert copies_of(pipeline, "t") == 2
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


@pytest.mark.long
def test_the_roles_of_an_acl_that_read_otherwise_are_copied(dsn: str, tmp_path: Path) -> None:
    role = f"r{uuid.uuid4().hex}"
    psql(dsn, f"create role {role}")
    table = f"create table t (id int primary key, x text, a aclitem default '{role}=r/{role}')"
    pipeline = set_up_table(dsn, tmp_path, table=[table])
    with runner.streaming(pipeline):
        wait_until_landed(pipeline)
        psql(dsn, f"alter role {role} rename to {role}x")
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
def test_a_column_of_a_type_that_stays_as_it_is_costs_no_copy(dsn: str, tmp_path: Path) -> None:
    psql(dsn, "create type mood as enum ('a')", "alter type mood add value 'b'")
    pipeline = set_up_table(dsn, tmp_path)
    psql(dsn, "alter table t add column m mood default 'b'", "insert into t values (2, 'x', 'a')")
    with psycopg.connect(dsn) as connection:  # in one transaction
        connection.execute("create type pair as (n int, m mood)")
        connection.execute("create type hue as enum ('red')")
        connection.execute("alter table t add column p pair[], add column h hue default 'red'")
    psql(dsn, "insert into t values (3)")
    with runner.streaming(pipeline):
        wait_until_recopier_polled(pipeline)
    assert copies_of(pipeline, "t") == 1
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 3


ATTACHED_FOR_A_WHILE = (
    "alter table t attach partition s for values from (20) to (30)",
    "insert into t values (22, 'under the name of the root')",
    "update t set x = 'changed under the name of the root' where id = 21",
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "left"), [("alter table t detach partition s", ["t", "s"]), ("drop table s", ["t"])]
)
def test_what_was_sent_of_a_table_that_was_a_partition_between_two_looks_is_copied(
    dsn: str, tmp_path: Path, end: str, left: list[str]
) -> None:
    psql(dsn, "create table s (id bigint primary key, x text)", "insert into s values (21, 's')")
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    psql(dsn, *ATTACHED_FOR_A_WHILE, end)
    with runner.streaming(pipeline):
        for table in left:
            wait_for_copies(pipeline, table)
    rows.assert_log_folds_to_source(pipeline, left)


@pytest.mark.long
def test_a_tree_that_was_part_of_another_between_two_looks_is_copied_with_it(
    dsn: str, tmp_path: Path
) -> None:
    psql(
        dsn,
        "create table s (id bigint primary key, x text) partition by range (id)",
        "create table s1 partition of s for values from (20) to (30)",
        "insert into s values (21, 's')",
    )
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    psql(dsn, *ATTACHED_FOR_A_WHILE, "alter table t detach partition s")
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t", "s")
    rows.assert_log_folds_to_source(pipeline, ["t", "s"])


@pytest.mark.long
def test_a_tree_whose_partition_went_on_to_another_between_two_looks_is_copied(
    dsn: str, tmp_path: Path
) -> None:
    psql(
        dsn,
        "create table s (id bigint primary key, x text)",
        "create table other (id bigint primary key, x text) partition by range (id)",
        "insert into s values (21, 's')",
    )
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    psql(
        dsn,
        *ATTACHED_FOR_A_WHILE,
        "alter table t detach partition s",
        "alter table other attach partition s for values from (20) to (30)",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t", "other")
    rows.assert_log_folds_to_source(pipeline, ["t", "other"])


@pytest.mark.long
def test_a_tree_that_another_one_was_published_over_for_a_while_is_copied(
    dsn: str, tmp_path: Path
) -> None:
    name = publication_name(dsn, tmp_path)
    psql(
        dsn,
        "create table above (id bigint primary key, x text) partition by range (id)",
        *TREE,
        "alter table above attach partition t for values from (0) to (20)",
        f"create publication {name} for table t {FULL}",
    )
    pipeline = set_up_table(dsn, tmp_path, table=())
    psql(
        dsn,
        f"alter publication {name} add table above",
        "update t set x = 'under the name of the other'",
        f"alter publication {name} drop table above",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.parametrize("identity", ["full", "default"])
def test_a_key_that_was_none_for_a_while_brings_a_copy(
    dsn: str, tmp_path: Path, identity: str
) -> None:
    """Whole old images do not say that rows had no key: the catalog says it, too late."""
    pipeline = set_up_table(dsn, tmp_path)
    if identity == "full":
        psql(dsn, "alter table t replica identity full")
    with runner.streaming(pipeline):
        wait_until_recopier_polled(pipeline)
    psql(
        dsn,
        "alter table t replica identity full",
        "alter table t drop constraint t_pkey",
        "insert into t values (1, 'twin')",
        "delete from t where x = 'twin'",
        "alter table t add primary key (id)",
        f"alter table t replica identity {identity}",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("column", "there", "back"),
    [
        (
            "regclass default 'other'",
            "alter table other rename to another",
            "alter table another rename to other",
        ),
        (
            "regtype default 'mood'",
            "alter type mood rename to humor",
            "alter type humor rename to mood",
        ),
        ("regprocedure default 'f(mood)'", "alter type mood rename to humor", "select 1"),
    ],
)
def test_values_written_while_an_object_had_another_name_are_copied(
    dsn: str, tmp_path: Path, column: str, there: str, back: str
) -> None:
    psql(
        dsn,
        "create table other (id int primary key)",
        "create type mood as enum ('a')",
        "create function f(mood) returns int language sql as 'select 1'",
    )
    table = f"create table t (id bigint primary key, x text, v {column})"
    pipeline = set_up_table(dsn, tmp_path, table=[table])
    psql(dsn, there, "update t set x = 'meanwhile'", back)
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t")
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 1


@pytest.mark.long
def test_a_table_that_was_a_partition_at_a_look_is_copied_once_it_is_a_table_again(
    dsn: str, tmp_path: Path
) -> None:
    psql(dsn, "create table s (id bigint primary key, x text)", "insert into s values (21, 's')")
    pipeline = set_up_table(dsn, tmp_path, table=TREE)
    with runner.streaming(pipeline):
        psql(dsn, *ATTACHED_FOR_A_WHILE)
        wait_for_copies(pipeline, "t")
        psql(dsn, "alter table t detach partition s")
        wait_for_copies(pipeline, "t", copies=3)
        wait_for_copies(pipeline, "s")
    rows.assert_log_folds_to_source(pipeline, ["t", "s"])


def test_what_changes_while_a_snapshot_waits_is_copied_again(dsn: str, tmp_path: Path) -> None:
    """A transaction that saw the catalog before the change commits after the snapshot."""
    psql(dsn, "create type mood as enum ('a')")
    pipeline = set_up_table(
        dsn, tmp_path, table=["create table t (id int primary key, x text, v mood)"]
    )
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(dsn) as older,
        psycopg.connect(dsn) as old,
        psycopg.connect(dsn) as over,
    ):
        older.execute("select pg_current_xact_id()")
        copying = pool.submit(snapshot, pipeline, ["public.t"])
        wait_until_blocked_by(dsn, older)
        old.execute("select pg_current_xact_id()")
        older.commit()
        wait_until_blocked_by(dsn, old)
        over.execute("insert into t values (2, 'x', 'a')")
        psql(dsn, "alter type mood rename value 'a' to 'b'")
        old.commit()
        copying.result()
        over.commit()
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "t", copies=3)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2


def test_a_dropped_publication_ends_the_stream(dsn: str, tmp_path: Path) -> None:
    name = publication_name(dsn, tmp_path)
    pipeline = set_up_table(dsn, tmp_path)
    with pytest.raises(PublicationMissing):
        stream_ended_by(pipeline, f"drop publication {name}")


def test_what_changes_nothing_of_a_table_costs_no_copy(dsn: str, tmp_path: Path) -> None:
    name = publication_name(dsn, tmp_path)
    psql(dsn, *TREE, f"create publication {name} for table t {FULL}")
    pipeline = set_up_table(dsn, tmp_path, table=())
    psql(
        dsn,
        "create table u (id int primary key)",
        f"alter publication {name} add table u",
        f"comment on publication {name} is 'other'",
        "grant select on t, t1 to public",
        "insert into t values (3, 'c')",
        "vacuum analyze t",
        "alter table t1 set (fillfactor = 90)",
        "alter table t rename to t0",
        "alter table t0 rename to t",
    )
    with runner.streaming(pipeline):
        wait_for_copies(pipeline, "u", copies=1)
        psql(dsn, f"alter publication {name} drop table u", f"alter publication {name} add table u")
        wait_for_copies(pipeline, "u")
    assert copies_of(pipeline, "t") == 1
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2
