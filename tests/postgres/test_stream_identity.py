"""What each replica identity sends of an old and a new row, and truncates: P104 to P110, P122."""

from __future__ import annotations

import psycopg
import pytest

from pgstream_dagster.schema.changes import Op
from tests.support.harness.capture import Capture
from tests.support.plugins.cluster import psql
from tests.support.reference.change import Change

PEOPLE = (
    """create table people (id int not null, name text not null, surname text not null, city text,
        biography text, primary key (surname, id))""",
    "alter table people alter biography set storage external",
    "create unique index by_names on people (surname, name)",
)
LARGE = "x" * 9_000
ADA = {"id": "1", "name": "Ada", "surname": "Byron", "city": "London", "biography": LARGE}
MOVE_CITY = "update people set city = 'Bath'"


def landed(dsn: str, identity: str, *statements: str) -> list[Change]:
    """The updates and deletes of a row that was there before."""
    psql(dsn, *PEOPLE, f"alter table people replica identity {identity}")
    psql(dsn, f"insert into people values (1, 'Ada', 'Byron', 'London', '{LARGE}')")
    return landed_changes(dsn, *statements)


def landed_changes(dsn: str, *statements: str) -> list[Change]:
    capture = Capture(dsn)
    with capture:
        psql(dsn, *statements)
        capture.catch_up()
    return [change for change in capture.log.changes if change.op is not Op.MESSAGE]


def test_a_large_value_that_an_update_leaves_out_is_missing(dsn: str) -> None:
    """P104."""
    [update] = landed(dsn, "default", MOVE_CITY)
    unsent = {name: text for name, text in ADA.items() if name != "biography"}
    assert update.after == unsent | {"city": "Bath"}
    assert (update.before, update.old_key) == (None, None)


def test_a_large_value_that_an_update_changes_is_there(dsn: str) -> None:
    """P105."""
    [update] = landed(dsn, "default", "update people set biography = repeat('y', 9000)")
    assert update.after == ADA | {"biography": "y" * 9_000}
    assert (update.before, update.old_key) == (None, None)


def test_a_changed_part_of_the_key_comes_with_the_old_key(dsn: str) -> None:
    """P106."""
    [update] = landed(dsn, "default", "update people set surname = 'Lovelace'")
    assert (update.old_key, update.key) == (("Byron", "1"), ("Lovelace", "1"))
    assert update.before == {"id": "1", "surname": "Byron"}


def test_a_delete_has_the_key_only(dsn: str) -> None:
    """P107."""
    [delete] = landed(dsn, "default", "delete from people")
    assert (delete.op, delete.key) == (Op.DELETE, ("Byron", "1"))
    assert (delete.before, delete.after) == ({"id": "1", "surname": "Byron"}, None)


def test_full_identity_has_the_old_row_whole_and_the_new_one_too(dsn: str) -> None:
    """P108."""
    update, delete = landed(dsn, "full", MOVE_CITY, "delete from people")
    assert (update.before, update.after) == (ADA, ADA | {"city": "Bath"})
    assert delete.before == ADA | {"city": "Bath"}


def test_an_identity_of_an_index_sends_its_columns(dsn: str) -> None:
    """P109; the key is in the order of the index."""
    moved, deleted = landed(
        dsn, "using index by_names", "update people set name = 'Augusta'", "delete from people"
    )
    assert moved.before == {"name": "Ada", "surname": "Byron"}
    assert (moved.old_key, moved.key) == (("Byron", "Ada"), ("Byron", "Augusta"))
    assert deleted.before == {"name": "Augusta", "surname": "Byron"}


def test_without_an_identity_the_source_refuses_and_inserts_are_sent(dsn: str) -> None:
    """P110; `pgstream check` names such a table before anything starts."""
    psql(dsn, *PEOPLE, "alter table people replica identity nothing")
    capture = Capture(dsn)
    with capture:
        psql(dsn, "insert into people values (1, 'Ada', 'Byron', null, null)")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            psql(dsn, MOVE_CITY)
        capture.catch_up()
    assert [change.op for change in capture.log.changes] == [Op.INSERT]


def test_tables_truncated_in_cascade_are_emptied_between_their_rows(dsn: str) -> None:
    """P122, field 55."""
    psql(
        dsn,
        "create table a (id serial primary key)",
        "create table b (id int primary key, a int references a)",
        "insert into a default values",
    )
    changes = landed_changes(
        dsn,
        "begin; insert into b values (1, 1); truncate a restart identity cascade;"
        " insert into a default values; insert into b values (2, 1); commit",
    )
    relations = {change.relation_id for change in changes}
    assert [change.op for change in changes] == [
        Op.INSERT,
        Op.TRUNCATE,
        Op.TRUNCATE,
        Op.INSERT,
        Op.INSERT,
    ]
    assert {change.relation_id for change in changes[1:3]} == relations
    assert [change.key for change in changes[3:]] == [("1",), ("2",)]


def test_what_is_done_to_a_partition_alone_is_not_the_tables(dsn: str) -> None:
    """P118, field 54: rows come under the root; a leaf's truncate, drop and detach do not."""
    psql(
        dsn,
        "create table t (id int primary key, x text) partition by range (id)",
        *(
            f"create table t{n} partition of t for values from ({n}0) to ({n + 1}0)"
            for n in range(1, 4)
        ),
    )
    [(root,)] = psql(dsn, "select 't'::regclass::oid::bigint")
    changes = landed_changes(
        dsn,
        "insert into t values (11, 'a'), (21, 'b'), (31, 'c')",
        "truncate t1",
        "drop table t2",
        "alter table t detach partition t3",
        "truncate t",
        "insert into t values (12, 'd')",
    )
    of_root = [change for change in changes if change.relation_id == root]
    assert [change.op for change in of_root] == [
        *[Op.INSERT] * 3,
        Op.TRUNCATE,
        Op.INSERT,
    ]
