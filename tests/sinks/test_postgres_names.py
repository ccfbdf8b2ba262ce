"""A name of a table that another relation has now: after a drop and a create, and after renames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pgstream_dagster.errors import SinkRefused, TargetSchemaDiffers
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.schema.table import Column, TableSchema
from pgstream_dagster.sinks.base import Refused
from pgstream_dagster.sinks.postgres import PostgresSink, Target
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.connect import connect
from tests.support.harness.sink_changes import History, batch, delivered, version
from tests.support.plugins.cluster import psql

OLD = version(
    "orders",
    [
        Column("id", 1, 23, "integer", not_null=True),
        Column("note", 2, 25, "text", not_null=True),
        Column("gone", 3, 25, "text", not_null=True),
    ],
)
NEW = version("orders", {"note": "numeric", "id": "bigint", "more": "text"}, relation_id=16_900)
FILLED = replace(NEW, name="orders_new")


def named(schema: TableSchema, name: str) -> TableSchema:
    return replace(schema, name=name)


@contextmanager
def opened(
    dsn: str,
    versions: Sequence[tuple[int, TableSchema]] = (),
    *,
    name: str = "replica",
    **fields: Any,
) -> Iterator[PostgresSink]:
    with closing(PostgresSink(Target("shop", name, dsn, **fields))) as sink:
        sink.make_tables_of(1, None, lambda _: versions, lambda _: False)
        sink.open()
        yield sink


def rows(dsn: str, table: str = "orders") -> list[Any]:
    return [row for (row,) in psql(dsn, f"select to_jsonb(t) from {table} t order by id")]


def recorded(dsn: str) -> list[tuple[Any, ...]]:
    query = "select relation_id, version ->> 'name' from pgstream.sink_tables order by 1"
    return psql(dsn, query)


@pytest.mark.parametrize("with_marker", [True, False], ids=["marker", "rows"])
def test_a_table_that_was_dropped_and_created_begins_again(dsn: str, with_marker: bool) -> None:
    h = History()
    with opened(dsn) as sink:
        first = [h.insert(OLD, id=n, note="x", gone="y") for n in ("1", "2")]
        assert sink.deliver(batch(*first)) == {}
        psql(dsn, "create table lines (order_id int references orders)")
        h.end()
        marker = [h.copy(NEW)] if with_marker else []
        read = [h.read(NEW, id=n, note="1.50", more=None) for n in ("2", "3")]
        assert sink.deliver(batch(*marker, *read)) == {}
        h.end()
        assert sink.deliver(batch(h.update(NEW, id="3", note="2", more="m"))) == {}
    assert rows(dsn) == [{"id": 2, "note": 1.5, "more": None}, {"id": 3, "note": 2, "more": "m"}]
    assert recorded(dsn) == [(16_900, "orders")]


def test_an_empty_table_that_was_created_again_leaves_no_rows_of_the_former(dsn: str) -> None:
    h = History()
    with opened(dsn) as sink:
        sink.deliver(batch(h.insert(OLD, id="1", note="x", gone="y")))
        h.end()
        assert sink.deliver(batch(h.copy(NEW))) == {}
    assert rows(dsn) == []


def test_what_depends_on_a_table_that_was_created_again_is_named(dsn: str) -> None:
    """P91: once nothing depends on it, the same batch is taken."""
    h = History()
    with opened(dsn) as sink:
        sink.deliver(batch(h.insert(OLD, id="1", note="x", gone="y"), cursor="1"))
        psql(dsn, "create view report as select count(*) from orders")
        h.end()
        with pytest.raises(TargetSchemaDiffers, match="depend") as caught:
            sink.deliver(batch(h.copy(NEW), cursor="2"))
        assert caught.value.statement == 'drop table "public"."orders"'
        psql(dsn, "drop view report")
        assert sink.open() == "1"
        assert sink.deliver(batch(h.copy(NEW), cursor="2")) == {}


def test_a_table_that_the_sink_has_not_made_is_emptied_and_gets_the_columns(dsn: str) -> None:
    psql(dsn, "create table orders (id int primary key, note text, gone text, own int default 7)")
    h = History()
    with opened(dsn) as sink:
        sink.deliver(batch(h.insert(OLD, id="1", note="x", gone="y")))
        h.end()
        assert sink.deliver(batch(h.copy(NEW), h.read(NEW, id="1", note="1.5", more="m"))) == {}
    assert rows(dsn) == [{"id": 1, "note": 1.5, "own": 7, "more": "m"}]


def test_an_existing_table_is_emptied_when_its_source_was_created_again(dsn: str) -> None:
    psql(dsn, "create table orders (id int primary key, note text, gone text, more text)")
    h = History()
    with opened(dsn, creates_tables=False) as sink:
        sink.deliver(batch(h.insert(OLD, id="1", note="x", gone="y")))
        h.end()
        assert sink.deliver(batch(h.copy(NEW), h.read(NEW, id="1", note="1.5", more="m"))) == {}
    assert rows(dsn) == [{"id": 1, "note": "1.5", "gone": None, "more": "m"}]
    assert recorded(dsn) == [(16_900, "orders")]


def test_a_dead_letter_of_a_dropped_table_does_not_touch_its_successor(dsn: str) -> None:
    h = History()
    letter = h.insert(OLD, id="9", note="late", gone="y")
    with opened(dsn) as sink:
        sink.deliver(batch(h.insert(OLD, id="1", note="x", gone="y")))
        h.end()
        sink.deliver(batch(h.copy(NEW), h.read(NEW, id="2", note="1", more=None), cursor="2"))
        sink.open()
        [verdict] = delivered(sink, batch(letter, cursor="2")).values()
    assert isinstance(verdict, Refused)
    assert "another one has the name" in verdict.reason
    assert rows(dsn) == [{"id": 2, "note": 1, "more": None}]


def test_a_change_of_a_dropped_table_that_comes_late_does_not_touch_its_successor(dsn: str) -> None:
    h = History()
    # From topics of Kafka, in whose partitions tables have no common order.
    with opened(dsn, [(1_000, OLD), (2_000, NEW)]) as sink:
        sink.deliver(batch(h.insert(OLD, id="1", note="x", gone="y")))
        h.end()
        sink.deliver(batch(h.copy(NEW), h.insert(NEW, id="2", note="1", more=None)))
        h.end()
        assert list(delivered(sink, batch(h.insert(OLD, id="9", note="late", gone="y")))) == [0]
    assert rows(dsn) == [{"id": 2, "note": 1, "more": None}]


def late(*changes: Change, cursor: str = "1") -> ChangeBatch:
    """As a reader gives a copy that it takes in, and everything after a reset."""
    return replace(batch(*changes, cursor=cursor), comes_late=True)


def test_a_dropped_table_that_comes_again_is_left_out(dsn: str) -> None:
    h, again = History(), History()
    with opened(dsn) as sink:
        sink.deliver(batch(h.copy(OLD), h.read(OLD, id="1", note="x", gone="y")))
        h.end()
        sink.deliver(batch(h.copy(NEW), h.read(NEW, id="2", note="1", more=None), cursor="2"))
        sink.open()
        first = [again.copy(OLD), again.read(OLD, id="1", note="x", gone="y")]
        assert sink.deliver(late(*first, again.truncate(OLD))) == {}
        assert rows(dsn) == [{"id": 2, "note": 1, "more": None}]
        again.end()
        changes = [again.copy(NEW), again.read(NEW, id="3", note="1", more=None)]
        assert sink.deliver(late(*changes)) == {}
    assert rows(dsn) == [{"id": 3, "note": 1, "more": None}]
    assert recorded(dsn) == [(16_900, "orders")]


def test_a_copy_that_is_taken_in_late_fills_the_table_under_its_name_of_now(dsn: str) -> None:
    h, before = History(), History()
    versions = [(1_000, OLD), (2_000, NEW), (3_000, named(OLD, "orders_old"))]
    h.end()
    with opened(dsn, versions) as sink:
        sink.deliver(batch(h.copy(NEW), h.read(NEW, id="2", note="1", more=None)))
        first = [before.copy(OLD), before.read(OLD, id="1", note="x", gone="y")]
        assert sink.deliver(late(*first)) == {}
        h.end()
        change = h.update(named(OLD, "orders_old"), id="1", note="z")
        assert sink.deliver(batch(change)) == {}
    assert rows(dsn) == [{"id": 2, "note": 1, "more": None}]
    assert rows(dsn, "orders_old") == [{"id": 1, "note": "z", "gone": "y"}]


def test_a_copy_that_is_taken_in_late_waits_aside_until_its_name_is_free(dsn: str) -> None:
    h, before = History(), History()
    third = version("archive", {"id": "integer"}, relation_id=16_950)
    archived = named(OLD, "archive")
    # The table has the name that the third one has, after that.
    versions = [(1_000, OLD), (2_000, NEW), (2_000, third), (4_000, archived)]
    h.end()
    with opened(dsn, versions) as sink:
        sink.deliver(batch(h.insert(NEW, id="2", note="1", more=None), h.insert(third, id="3")))
        first = [before.copy(OLD), before.read(OLD, id="1", note="x", gone="y")]
        assert sink.deliver(late(*first)) == {}
        assert rows(dsn, "archive") == [{"id": 3}]
        h.end()
        h.end()
        versions.append((4_000, named(third, "x")))
        assert sink.deliver(batch(h.update(archived, id="1", note="z"))) == {}
    assert rows(dsn, "archive") == [{"id": 1, "note": "z", "gone": "y"}]
    assert rows(dsn, "x") == [{"id": 3}]


def test_a_refused_row_leaves_the_name_where_it_was_until_the_batch_comes_again(dsn: str) -> None:
    """P91."""
    h = History()
    with opened(dsn) as sink:
        sink.deliver(batch(h.insert(OLD, id="1", note="x", gone="y")))
        h.end()
        read = [h.read(NEW, id=n, note=note, more=None) for n, note in (("1", "no"), ("2", "3"))]
        changes = batch(h.copy(NEW), *read)
        assert list(sink.deliver(changes)) == [1]
        assert rows(dsn) == [{"id": 1, "note": "x", "gone": "y"}]
        assert list(delivered(sink, changes)) == [1]
    assert rows(dsn) == [{"id": 2, "note": 3, "more": None}]


def test_a_table_takes_the_name_of_one_that_was_renamed(dsn: str) -> None:
    h = History()
    old = named(OLD, "orders_old")
    # The log describes the former table with its next row, long after the rename.
    versions = [(1_000, OLD), (1_000, FILLED), (2_000, NEW), (9_000, old)]
    with opened(dsn, versions) as sink:
        first = [h.insert(OLD, id="1", note="x", gone="y"), h.insert(FILLED, id="2", note="5")]
        assert sink.deliver(batch(*first)) == {}
        h.end()
        assert sink.deliver(batch(h.insert(NEW, id="3", note="6"))) == {}
        assert [row["id"] for row in rows(dsn)] == [2, 3]
        assert rows(dsn, "orders_old") == [{"id": 1, "note": "x", "gone": "y"}]
        h.commit_lsn = 9_000
        assert sink.deliver(batch(h.update(old, id="1", note="z"))) == {}
    assert rows(dsn, "orders_old") == [{"id": 1, "note": "z", "gone": "y"}]
    assert recorded(dsn) == [(16_400, "orders_old"), (16_900, "orders")]


def test_two_tables_exchange_their_names_and_a_third_moves_on(dsn: str) -> None:
    h = History()
    third = version("archive", {"id": "integer"}, relation_id=16_950)
    versions = [
        (1_000, OLD),
        (1_000, FILLED),
        (1_000, third),
        (2_000, NEW),
        (3_000, named(OLD, "orders_new")),
    ]
    with opened(dsn, versions) as sink:
        first = [
            h.insert(OLD, id="1", note="x", gone="y"),
            h.insert(FILLED, id="2", note="5"),
            h.insert(third, id="3"),
        ]
        assert sink.deliver(batch(*first)) == {}
        h.end()
        # All in one transaction of the source, and in one batch of ours.
        changes = [h.insert(NEW, id="4", note="6")]
        changes += [h.delete(named(OLD, "orders_new"), id="1")]
        changes += [h.insert(named(OLD, "orders_new"), id="5", note="n", gone="g")]
        assert sink.deliver(batch(*changes)) == {}
        assert [row["id"] for row in rows(dsn)] == [2, 4]
        assert [row["id"] for row in rows(dsn, "orders_new")] == [5]
        h.end()
        versions += [(3_500, named(third, "x")), (3_500, named(NEW, "archive"))]
        assert sink.deliver(batch(h.insert(named(NEW, "archive"), id="7", note="1"))) == {}
    assert [row["id"] for row in rows(dsn, "archive")] == [2, 4, 7]
    assert rows(dsn, "x") == [{"id": 3}]


def test_a_former_table_that_is_received_no_more_gives_its_place_to_the_new_one(dsn: str) -> None:
    h = History()
    versions = [(1_000, OLD), (1_500, named(OLD, "orders_old")), (1_500, NEW)]
    with opened(dsn, versions, tables=("orders",)) as sink:
        sink.deliver(batch(h.insert(OLD, id="1", note="x", gone="y")))
        h.end()
        assert sink.deliver(batch(h.copy(NEW), h.read(NEW, id="2", note="1"))) == {}
    assert rows(dsn) == [{"id": 2, "note": 1, "more": None}]
    assert psql(dsn, "select to_regclass('orders_old')") == [(None,)]


def test_tables_that_are_not_ours_to_rename_wait_for_their_owner(dsn: str) -> None:
    psql(
        dsn,
        "create table orders (id int primary key, note text, gone text)",
        "create table orders_new (id bigint primary key, note numeric, more text)",
    )
    h = History()
    versions = [(1_000, OLD), (1_000, FILLED), (1_500, NEW), (1_500, named(OLD, "orders_old"))]
    with opened(dsn, versions, creates_tables=False) as sink:
        first = [h.insert(OLD, id="1", note="x", gone="y"), h.insert(FILLED, id="2", note="5")]
        assert sink.deliver(batch(*first)) == {}
        h.end()
        change = h.insert(NEW, id="3", note="6", more=None)
        for expected in (
            'alter table "public"."orders" rename to "orders_old"',
            'alter table "public"."orders_new" rename to "orders"',
        ):
            with pytest.raises(TargetSchemaDiffers) as caught:
                sink.deliver(batch(change))
            assert caught.value.statement == expected
            psql(dsn, expected)
            sink.open()
        assert sink.deliver(batch(change)) == {}
    assert [row["id"] for row in rows(dsn)] == [2, 3]
    assert recorded(dsn) == [(16_400, "orders_old"), (16_900, "orders")]


def test_existing_tables_that_exchange_their_names_keep_their_rows(dsn: str) -> None:
    psql(
        dsn,
        "create table orders (id int primary key, note text, gone text, more text)",
        "create table orders_new (id bigint primary key, note text, gone text, more text)",
    )
    h = History()
    old = named(OLD, "orders_new")
    versions = [(1_000, OLD), (1_000, FILLED), (2_000, NEW), (2_000, old)]
    with opened(dsn, versions, creates_tables=False) as sink:
        first = [h.insert(OLD, id="1", note="x", gone="y"), h.insert(FILLED, id="2", note="5")]
        assert sink.deliver(batch(*first)) == {}
        h.end()
        changes = [h.insert(NEW, id="3", note="6"), h.insert(old, id="4", note="w", gone="z")]
        for expected in (
            'alter table "public"."orders" rename to "pgstream_1_16400"',
            'alter table "public"."orders_new" rename to "orders"',
            'alter table "public"."pgstream_1_16400" rename to "orders_new"',
        ):
            with pytest.raises(TargetSchemaDiffers) as caught:
                sink.deliver(batch(*changes))
            assert caught.value.statement == expected
            psql(dsn, expected)
            sink.open()
        assert sink.deliver(batch(*changes)) == {}
    assert [row["id"] for row in rows(dsn)] == [2, 3]
    assert [row["id"] for row in rows(dsn, "orders_new")] == [1, 4]
    assert recorded(dsn) == [(16_400, "orders_new"), (16_900, "orders")]


def test_existing_tables_whose_names_their_owner_has_exchanged_are_followed(dsn: str) -> None:
    columns = "(id bigint primary key, note text, gone text, more text)"
    psql(dsn, f"create table orders {columns}", f"create table orders_new {columns}")
    h = History()
    versions = [(1_000, OLD), (1_000, FILLED), (2_000, NEW), (2_000, named(OLD, "orders_new"))]
    with opened(dsn, versions, creates_tables=False) as sink:
        first = [h.insert(OLD, id="1", note="x", gone="y"), h.insert(FILLED, id="2", note="5")]
        assert sink.deliver(batch(*first)) == {}
        psql(
            dsn,
            "alter table orders rename to x; alter table orders_new rename to orders;"
            " alter table x rename to orders_new",
        )
        h.end()
        assert sink.deliver(batch(h.insert(NEW, id="3", note="6"))) == {}
    assert [row["id"] for row in rows(dsn)] == [2, 3]
    assert [row["id"] for row in rows(dsn, "orders_new")] == [1]


# --- with the source's catalog --------------------------------------------------------------------


def described(dsn: str, table: str) -> TableSchema:
    [(oid,)] = psql(dsn, f"select '{table}'::regclass::oid::int8")
    with closing(connect(dsn)) as session:
        return describe(session, 1, oid)


def test_a_former_table_has_the_name_that_the_source_says(dsn: str, replica: str) -> None:
    psql(
        dsn,
        "create table orders (id serial primary key, note text unique)",
        "create table orders_new (id serial primary key, note text unique)",
    )
    old, new = described(dsn, "orders"), described(dsn, "orders_new")
    h = History()
    with opened(replica, source_dsn=dsn) as sink:
        first = [h.insert(old, id="1", note="x"), h.insert(new, id="2", note="y")]
        assert sink.deliver(batch(*first)) == {}
    psql(dsn, "alter table orders rename to orders_old; alter table orders_new rename to orders")
    h.end()
    with opened(replica, source_dsn=dsn) as sink:  # makes no table again
        assert sink.deliver(batch(h.insert(named(new, "orders"), id="3", note="z"))) == {}
    assert [row["id"] for row in rows(replica, "orders_old")] == [1]
    assert [row["id"] for row in rows(replica)] == [2, 3]
    # From the start of the log again, into a database that has the tables of now.
    psql(replica, "drop table orders, orders_old", "drop schema pgstream cascade")
    h = History()
    with opened(replica, source_dsn=dsn) as sink:
        assert sink.deliver(batch(h.copy(old), h.read(old, id="1", note="x"))) == {}
        assert sink.deliver(batch(h.copy(new), h.read(new, id="2", note="y"))) == {}
        h.end()
        assert sink.deliver(batch(h.insert(named(new, "orders"), id="3", note="z"))) == {}
    assert [row["id"] for row in rows(replica, "orders_old")] == [1]
    assert [row["id"] for row in rows(replica)] == [2, 3]
    defaults = psql(
        replica,
        "select column_default from information_schema.columns where column_name = 'id'"
        " and table_schema = 'public' order by 1",
    )
    assert len(defaults) == 2 and all(default for (default,) in defaults)


def test_a_table_that_was_created_again_is_made_as_on_the_source(dsn: str, replica: str) -> None:
    psql(dsn, "create table orders (id serial primary key, note text not null unique)")
    old = described(dsn, "orders")
    h = History()
    with opened(replica, source_dsn=dsn) as sink:
        assert sink.deliver(batch(h.copy(old), h.read(old, id="1", note="x"))) == {}
        psql(
            dsn,
            "drop table orders",
            "create table orders (id int primary key, note text default 'n', day int)"
            " partition by range (id)",
            "create table orders_1 partition of orders for values from (0) to (9)",
            "create index orders_day on orders (day)",
        )
        new = described(dsn, "orders")
        h.end()
        sink.open()  # a restart before the new table is copied
        changes = [h.copy(new), *(h.read(new, id=n, note="x", day=None) for n in ("1", "2"))]
        assert sink.deliver(batch(*changes)) == {}
        indexes = psql(replica, "select indexname from pg_indexes where tablename = 'orders'")
        assert sorted(name for (name,) in indexes) == ["orders_day", "orders_pkey"]
    assert rows(replica) == [{"id": n, "note": "x", "day": None} for n in (1, 2)]
    assert psql(replica, "select to_regclass('orders_id_seq')") == [(None,)]


def test_a_table_is_made_though_a_former_one_has_the_names_of_its_indexes(
    dsn: str, replica: str
) -> None:
    columns = "(id int generated always as identity primary key, n serial unique)"
    psql(dsn, f"create table orders {columns}", "create index spare on orders (n)")
    old = described(dsn, "orders")
    h = History()
    with opened(replica, source_dsn=dsn) as sink:
        assert sink.deliver(batch(h.copy(old), h.read(old, id="1", n="1"))) == {}
        h.end()
        psql(dsn, "alter table orders rename to archive")
        archive = named(old, "archive")
        assert sink.deliver(batch(h.insert(archive, id="2", n="2"))) == {}
        h.end()
        # The target keeps a table that was dropped.
        psql(dsn, "drop table archive")
        psql(dsn, f"create table orders {columns}", "create index spare on orders (n)")
        new = described(dsn, "orders")
        assert sink.deliver(batch(h.copy(new), h.read(new, id="3", n="3"))) == {}
    assert rows(replica, "archive") == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
    assert rows(replica) == [{"id": 3, "n": 3}]
    indexes = "select indexname from pg_indexes where tablename = 'orders' order by 1"
    assert psql(replica, indexes) == [("orders_n_key",), ("orders_pkey",), ("spare",)]


def test_a_table_moves_to_a_namespace_where_its_indexes_names_are_taken(dsn: str) -> None:
    psql(dsn, "create schema archive")
    h = History()
    there = replace(NEW, namespace="archive")
    with opened(dsn) as sink:
        first = [h.insert(OLD, id="1", note="x", gone="y"), h.insert(there, id="2", note="5")]
        assert sink.deliver(batch(*first)) == {}
        h.end()
        moved = replace(named(OLD, "orders_old"), namespace="archive")
        assert sink.deliver(batch(h.insert(moved, id="3", note="x", gone="y"))) == {}
    assert [row["id"] for row in rows(dsn, "archive.orders_old")] == [1, 3]
    assert [row["id"] for row in rows(dsn, "archive.orders")] == [2]


def test_a_table_moves_to_a_namespace_that_the_target_lacks(dsn: str, replica: str) -> None:
    psql(dsn, "create table orders (id int primary key)")
    old = described(dsn, "orders")
    h = History()
    with opened(replica, source_dsn=dsn) as sink:
        assert sink.deliver(batch(h.insert(old, id="1"))) == {}
    psql(dsn, "create schema archive", "alter table orders set schema archive")
    moved = replace(old, namespace="archive")
    h.end()
    with opened(replica, source_dsn=dsn) as sink:
        assert sink.deliver(batch(h.insert(moved, id="2"))) == {}
    assert rows(replica, "archive.orders") == [{"id": 1}, {"id": 2}]


def test_rows_of_another_sink_are_not_to_be_truncated(dsn: str) -> None:
    first, second = History(), History()
    with opened(dsn, name="masked") as sink:
        assert (
            sink.deliver(batch(first.copy(OLD), first.read(OLD, id="1", note="x", gone="g"))) == {}
        )
    with (
        opened(dsn, name="plain") as sink,
        pytest.raises(SinkRefused, match="rows that are not of this sink but of sink 'masked'"),
    ):
        sink.deliver(batch(second.copy(OLD), second.read(OLD, id="1", note="y", gone="g")))
