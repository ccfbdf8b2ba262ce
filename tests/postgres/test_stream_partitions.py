"""
Partition trees whose leaves log less than their root's description says.

Postgres sends a leaf's changes under its root's name and marks them as the root's identity would
have it; CREATE TABLE ... PARTITION OF does not pass the identity on.
"""

from __future__ import annotations

import pytest

from pgstream_dagster.changes import Change, Op
from pgstream_dagster.errors import PartitionIdentity
from pgstream_dagster.schema.table import ReplicaIdentity
from tests.plugins.cluster import psql
from tests.proof.capture import Capture

LARGE = "(select string_agg(md5(i::text), '') from generate_series(1, 3072) i)"
TREE = [
    "create table t (id int primary key, x text, doc text) partition by range (id)",
    "alter table t alter doc set storage external",
    "alter table t replica identity full",
    "create table t1 partition of t for values from (0) to (10)",
    "alter table t1 replica identity full",
    f"insert into t select i, 'old', {LARGE} from generate_series(1, 2) i",
]
LATER = "create table t2 partition of t for values from (10) to (20)"


def captured(dsn: str, *statements: str) -> Capture:
    capture = Capture(dsn)
    with capture:
        psql(dsn, *statements)
        capture.catch_up()
    return capture


def changes(capture: Capture, op: Op) -> list[Change]:
    return [change for change in capture.log.changes if change.op is op]


def test_a_leaf_that_logs_its_key_only_says_nothing_of_other_columns(dsn: str) -> None:
    psql(dsn, *TREE)
    capture = captured(
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
    capture = captured(
        dsn,
        "update t set id = 12 where id = 11",
        "alter table t2 replica identity full",
        "delete from t where id = 12",
    )
    [update], [delete] = changes(capture, Op.UPDATE), changes(capture, Op.DELETE)
    assert update.before == {"id": "11"}
    assert delete.before == {"id": "12", "x": "a", "doc": "b"}


def test_it_holds_in_a_large_transaction(dsn: str) -> None:
    [(name,)] = psql(dsn, "select current_database()")
    psql(dsn, f"alter database {name} set logical_decoding_work_mem = '64kB'", *TREE)
    fill = "insert into t select i, repeat('x', 300), null from generate_series({}, {}) i"
    capture = captured(
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
def test_a_leaf_whose_rows_cannot_be_told_apart_stops_the_stream(
    dsn: str, root: list[str], leaf: list[str]
) -> None:
    psql(dsn, *root, "create table t1 partition of t for values from (0) to (10)", *leaf)
    with pytest.raises(PartitionIdentity, match=r"alter table public\.t1 replica identity full"):
        captured(dsn, "insert into t values (1, 1)", "update t set id = 2, c = 2", "delete from t")


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
    capture = captured(dsn, "insert into t values (1, 1), (2, null)", *more)
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
    capture = captured(dsn, "truncate u, t", "insert into u values (1, 'a')", "delete from u")
    assert len(changes(capture, Op.TRUNCATE)) == 2
    [delete] = changes(capture, Op.DELETE)
    assert delete.before == {"id": "1", "x": "a"}
