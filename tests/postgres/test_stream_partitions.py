"""
Partition trees whose leaves log less than their root's description says.

Postgres sends a leaf's changes under its root's name and marks them as the root's identity would
have it; CREATE TABLE ... PARTITION OF does not pass the identity on.
"""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import ReplicaIdentity
from tests.support.harness.capture import Capture
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until
from tests.support.reference.change import Change

LARGE = "(select string_agg(md5(i::text), '') from generate_series(1, 3072) i)"
TREE = [
    "create table t (id int primary key, x text, doc text) partition by range (id)",
    "alter table t alter doc set storage external",
    "alter table t replica identity full",
    "create table t1 partition of t for values from (0) to (10)",
    "alter table t1 replica identity full",
    f"insert into t select i, 'old', {LARGE} from generate_series(1, 2) i",
]
BRIEFLY_ATTACHED: list[LiteralString] = [
    "alter table t attach partition s for values from (20) to (30)",
    "insert into t values (21)",
    "alter table t detach partition s",
]
LATER = "create table t2 partition of t for values from (10) to (20)"


def landed_capture(dsn: str, *statements: str) -> Capture:
    capture = Capture(dsn)
    with capture:
        psql(dsn, *statements)
        capture.catch_up()
    return capture


def changes(capture: Capture, op: Op) -> list[Change]:
    return [change for change in capture.log.changes if change.op is op]


def test_a_leaf_that_logs_its_key_only_says_nothing_of_other_columns(dsn: str) -> None:
    psql(dsn, *TREE)
    capture = landed_capture(
        dsn,
        "update t set x = 'seen whole' where id = 1",
        LATER,
        f"insert into t select i, 'new', {LARGE} from generate_series(11, 12) i",
        "update t set x = 'changed', id = 13 where id = 11",  # does not send the large value
        "update t set x = 'changed' where id = 13",
        "update t set x = 'changed' where id = 2",
        "delete from t where id = 13",
    )
    whole, moved, untouched, other = changes(capture, Op.UPDATE)
    assert whole.before is not None and set(whole.before) == {"id", "x", "doc"}
    assert (moved.old_key, moved.key, moved.before) == (("11",), ("13",), {"id": "11"})
    assert moved.after == {"id": "13", "x": "changed"}
    assert (untouched.before, untouched.after) == (None, {"id": "13", "x": "changed"})
    assert other.key == ("2",) and other.after is not None and other.after["x"] == "changed"
    [delete] = changes(capture, Op.DELETE)
    assert (delete.key, delete.before) == (("13",), {"id": "13"})
    [(_, schema)] = capture.log.schemas.values()
    assert schema.identity is ReplicaIdentity.DEFAULT
    assert not changes(capture, Op.GAP)


def test_a_leaf_that_logs_all_again_is_believed_again(dsn: str) -> None:
    psql(dsn, *TREE, LATER, "insert into t values (11, 'a', 'b')")
    capture = landed_capture(
        dsn,
        "update t set id = 12 where id = 11",
        "alter table t2 replica identity full",
        "delete from t where id = 12",
    )
    [update], [delete] = changes(capture, Op.UPDATE), changes(capture, Op.DELETE)
    assert update.before == {"id": "11"}
    assert delete.before == {"id": "12", "x": "a", "doc": "b"}


@pytest.mark.long
def test_it_holds_in_a_large_transaction(dsn: str) -> None:
    [(name,)] = psql(dsn, "select current_database()")
    psql(dsn, f"alter database {name} set logical_decoding_work_mem = '64kB'", *TREE)
    fill = "insert into t select i, repeat('x', 300), null from generate_series({}, {}) i"
    capture = landed_capture(
        dsn,
        "create table t3 partition of t for values from (1000) to (100000)",
        f"begin; {fill.format(1000, 30000)}; savepoint s; {fill.format(40000, 50000)};"
        " rollback to s; delete from t where id < 20000 and id > 10; commit",
    )
    deletes = changes(capture, Op.DELETE)
    assert len(deletes) == 19_000
    assert all(change.before == {"id": (change.key or ("",))[0]} for change in deletes)


@pytest.mark.parametrize(
    ("root", "leaf"),
    [
        (
            ["create table t (id int not null, c int not null) partition by range (id)"],
            ["alter table t replica identity full", "alter table t1 add primary key (id)"],
        ),
        (
            ["create table t (id int primary key, c int not null) partition by range (id)"],
            [
                "create unique index t1c on t1 (c)",
                "alter table t1 replica identity using index t1c",
            ],
        ),
    ],
)
def test_a_leaf_whose_rows_cannot_be_distinguished_brings_gaps_and_a_copy(
    dsn: str, root: list[str], leaf: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    psql(dsn, *root, "create table t1 partition of t for values from (0) to (10)", *leaf)
    capture = landed_capture(
        dsn,
        "insert into t values (1, 1)",
        "update t set id = 2, c = 2",
        "delete from t",
        "insert into t values (3, 3)",
        "alter table t1 replica identity full",
        "update t set c = 4",
    )
    rows = [change for change in capture.log.changes if change.op is not Op.MESSAGE]
    assert [c.op for c in rows] == [Op.INSERT, Op.GAP, Op.GAP, Op.INSERT, Op.UPDATE]
    after = [c.position.commit_lsn + 1 for c in rows if c.op is Op.GAP]
    asked = [since for _, since, _ in capture.requested if since]
    assert asked in (after, after[1:])  # of two in one block the later copy serves both
    assert rows[-1].before is not None and rows[-1].before["id"] == "3"
    messages = [message for message in caplog.messages if "public.t1" in message]
    assert len(messages) == 1 and "alter table public.t1 replica identity full" in messages[0]


@pytest.mark.parametrize(
    "tree",
    [
        # Inserts only: Postgres refuses its UPDATEs and DELETEs.
        [
            "create table t (id int, c int) partition by range (id)",
            "alter table t replica identity full",
            "create table t1 partition of t for values from (0) to (10)",
        ],
        # More than is promised.
        [
            "create table t (id int primary key, c int) partition by range (id)",
            "create table t1 (c int, gone int, id int not null)",
            "alter table t1 drop gone, replica identity full",
            "alter table t attach partition t1 for values from (0) to (10)",
        ],
    ],
)
def test_leaves_that_log_nothing_or_more_are_sound(dsn: str, tree: list[str]) -> None:
    psql(dsn, *tree)
    more = ["update t set c = 3"] if "primary" in tree[0] else []
    capture = landed_capture(dsn, "insert into t values (1, 1), (2, null)", *more)
    assert [c.after for c in changes(capture, Op.INSERT)] == [
        {"id": "1", "c": "1"},
        {"id": "2", "c": None},
    ]
    assert len(changes(capture, Op.UPDATE)) == 2 * len(more)


def test_tables_of_one_shape_that_are_emptied_together_are_no_tree(dsn: str) -> None:
    """They are described one after the other, as a root and its leaf are."""
    psql(
        dsn,
        "create table u (id int, x text)",
        "alter table u replica identity full",
        "create table t (id int primary key, x text)",
    )
    capture = landed_capture(dsn, "truncate u, t", "insert into u values (1, 'a')", "delete from u")
    assert len(changes(capture, Op.TRUNCATE)) == 2
    [delete] = changes(capture, Op.DELETE)
    assert delete.before == {"id": "1", "x": "a"}


ALIKE = [
    "create table u (id int, x text)",
    "alter table u replica identity full",
    "create table t (id int primary key, x text)",
]


def test_tables_of_one_shape_in_a_rolled_back_savepoint_are_no_tree(dsn: str) -> None:
    """Of a streamed transaction what was rolled back is described, and has no row."""
    [(name,)] = psql(dsn, "select current_database()")
    psql(dsn, f"alter database {name} set logical_decoding_work_mem = '64kB'", *ALIKE)
    fill = "insert into {} select i, repeat('x', 300) from generate_series({}, {}) i"
    capture = landed_capture(
        dsn,
        f"begin; savepoint s; {fill.format('u', 1, 1000)}; {fill.format('t', 1, 1000)};"
        f" rollback to s; {fill.format('u', 1, 1000)}; commit",
        "delete from u where id <= 10",
    )
    assert len(changes(capture, Op.INSERT)) == 1000
    deletes = changes(capture, Op.DELETE)
    assert len(deletes) == 10
    assert all(c.before is not None and set(c.before) == {"id", "x"} for c in deletes)
    assert not changes(capture, Op.GAP)


@pytest.mark.parametrize("end", ["drop table t2", "alter table t detach partition t2"])
def test_a_leaf_that_is_gone_when_its_rows_are_read_is_believed_no_further(
    dsn: str, end: str
) -> None:
    psql(dsn, *TREE, LATER, "insert into t values (11, 'a', 'b')")
    capture = Capture(dsn)
    psql(dsn, "delete from t where id = 11", "insert into t values (12, 'c', 'd')", end)
    with capture:
        capture.catch_up()
    [delete] = changes(capture, Op.DELETE)
    assert (delete.key, delete.before) == (("11",), {"id": "11"})
    assert len(changes(capture, Op.INSERT)) == 1


def test_a_tree_is_not_taken_for_another_of_the_same_shape(dsn: str) -> None:
    other = "create table o (id int primary key, x text, doc text) partition by range (id)"
    psql(dsn, *TREE, other, "create table o1 partition of o for values from (0) to (10)")
    capture = landed_capture(
        dsn, "insert into o values (1, 'a', 'b')", "delete from o", "delete from t where id = 1"
    )
    of_o, of_t = changes(capture, Op.DELETE)
    assert of_o.before == {"id": "1"}
    assert of_t.before is not None and set(of_t.before) == {"id", "x", "doc"}


@pytest.mark.parametrize("end", ["alter table t detach partition s", "drop table s"])
def test_what_was_sent_as_a_leaf_is_reported_when_the_catalog_has_forgotten_it(
    dsn: str, end: str
) -> None:
    psql(dsn, *TREE, "create table s (like t including all)", "create table u (like t)")
    [oids] = psql(dsn, "select 't1'::regclass::oid::bigint, 's'::regclass::oid::bigint")
    capture = landed_capture(
        dsn,
        "insert into u values (1)",
        "alter table t attach partition s for values from (20) to (30)",
        "insert into t values (21)",
        end,
        "update t set x = 'changed' where id = 1",
        "insert into u values (2)",
    )
    assert capture.sent_as_leaves == {*oids}


def test_a_leaf_that_changes_by_itself_right_after_is_reported_too(dsn: str) -> None:
    psql(dsn, *TREE, "create table s (like t including all)")
    [(s,)] = psql(dsn, "select 's'::regclass::oid::bigint")
    capture = Capture(dsn)
    psql(dsn, *BRIEFLY_ATTACHED, "insert into s values (22)")
    with capture:
        capture.catch_up()
    assert s in capture.sent_as_leaves


def test_a_leaf_whose_own_rows_are_sent_again_before_is_reported_too(dsn: str) -> None:
    psql(dsn, *TREE, "create table s (like t including all)")
    [(s,)] = psql(dsn, "select 's'::regclass::oid::bigint")
    capture = Capture(dsn)
    earlier = f"{capture.slot}_earlier"
    psql(dsn, f"select pg_copy_logical_replication_slot('{capture.slot}', '{earlier}')")
    with capture:
        psql(dsn, "insert into s values (20)")
        until(lambda: capture.log.changes, seconds=30)
    capture.slot = earlier  # as after a kill: what has landed was not confirmed
    psql(dsn, *BRIEFLY_ATTACHED)
    with capture:
        capture.catch_up()
    assert s in capture.sent_as_leaves


def test_a_leaf_whose_own_rows_are_rolled_back_after_is_reported_too(dsn: str) -> None:
    psql(
        dsn,
        f"alter database {psql(dsn, 'select current_database()')[0][0]}"
        " set logical_decoding_work_mem = '64kB'",
        *TREE,
        "create table s (like t including all)",
    )
    [(s,)] = psql(dsn, "select 's'::regclass::oid::bigint")
    capture = Capture(dsn)
    with capture:
        with psycopg.connect(dsn) as session:
            for statement in BRIEFLY_ATTACHED:
                session.execute(statement)
            session.execute("savepoint p")
            rows = "select i, repeat('x', 300) from generate_series(100, 4000) i"
            session.execute(f"insert into s {rows}")
            until(lambda: streamed_bytes(dsn, capture.slot) > 300_000, seconds=30)
            session.execute("rollback to p")
        capture.catch_up()
    assert s in capture.sent_as_leaves


def test_a_table_whose_rows_were_rolled_back_is_no_leaf_of_a_tree_with_its_columns(
    dsn: str,
) -> None:
    psql(
        dsn,
        f"alter database {psql(dsn, 'select current_database()')[0][0]}"
        " set logical_decoding_work_mem = '64kB'",
        "create table t (id int primary key, x text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (1000)",
        "create table archive (id int primary key, x text)",
        "create table other (id int primary key, y text)",
    )
    capture = Capture(dsn)
    with capture:
        psql(dsn, "insert into t values (1, 'a')")
        capture.catch_up()
        with psycopg.connect(dsn) as session:
            rows = "select i, repeat('x', 300) from generate_series(%s::int, %s::int) i"
            session.execute(f"insert into other {rows}", (1, 2000))
            session.execute("savepoint s")
            session.execute(f"insert into archive {rows}", (1, 4000))
            until(lambda: streamed_bytes(dsn, capture.slot) > 1_000_000, seconds=30)
            session.execute("rollback to s")
            session.execute(f"insert into other {rows}", (3001, 6000))
        capture.catch_up()
    [(archive,)] = psql(dsn, "select 'archive'::regclass::oid::bigint")
    assert archive not in capture.sent_as_leaves


def streamed_bytes(dsn: str, slot: str) -> int:
    """Bytes of transactions in progress that the slot has streamed so far."""
    select = "select stream_bytes from pg_stat_replication_slots where slot_name = %s"
    with psycopg.connect(dsn, autocommit=True) as session:
        row = session.execute(select, (slot,)).fetchone()
    return 0 if row is None else int(row[0])
