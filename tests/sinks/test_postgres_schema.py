"""What a target gets from the source's catalog: types, tables, keys, then indexes, constraints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.postgres import PostgresSink, Target
from pgstream_dagster.source.catalog import describe
from tests.support.harness.sink_changes import History, batch
from tests.support.plugins.cluster import psql

SOURCE = (
    "create schema shop",
    "create extension citext",
    "create type shop.mood as enum ('low', 'high')",
    "create domain shop.code as varchar(5) default 'x' check (value <> 'no')",
    'create type shop."Pair" as (a int, "b c" shop.mood)',
    "create type shop.spans as range (subtype = float8, subtype_diff = float8mi)",
    "create sequence shop.numbers increment 5 minvalue 10 maxvalue 1000 start 50 cycle",
    (
        "create table shop.parents (id bigint generated always as identity primary key,"
        " n int not null default nextval('shop.numbers'), m shop.mood[], c shop.code, s shop.spans,"
        ' p shop."Pair", e public.citext, total numeric(10,2) default 0, v text collate "C",'
        " doubled numeric generated always as (total * 2) stored, unique (n),"
        " check (total >= 0))"
    ),
    (
        "create table shop.children (a int, b serial, parent bigint references shop.parents,"
        " primary key (b, a))"
    ),
    "create index on shop.children (parent) where a > 0",
    "create table shop.parted (id int primary key, t text) partition by range (id)",
    "create table shop.parted_1 partition of shop.parted for values from (0) to (100)",
    "create index parted_t on shop.parted (t)",
    "create table shop.left_out (id int primary key)",
)


@contextmanager
def opened(dsn: str, source: str, **fields: Any) -> Iterator[PostgresSink]:
    target = Target("shop", "replica", dsn, source_dsn=source, exclude=("shop.left_out",), **fields)
    with closing(PostgresSink(target)) as sink:
        sink.open()
        yield sink


def shape(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    """What a database's catalog says of the tables in shop."""
    chosen = "c.relnamespace = 'shop'::regnamespace and c.relname not like 'left_out%'"
    queries = {
        "columns": "select c.relname, a.attname, format_type(atttypid, atttypmod), attnotnull,"
        " attidentity, attgenerated, pg_get_expr(adbin, adrelid), attcollation from pg_class c"
        " join pg_attribute a on a.attrelid = c.oid and attnum > 0 and not attisdropped"
        f" left join pg_attrdef d on adrelid = c.oid and adnum = attnum where {chosen}"
        " and c.relkind in ('r', 'p') order by 1, 2",
        "constraints": "select c.relname, conname, pg_get_constraintdef(o.oid) from pg_class c"
        f" join pg_constraint o on conrelid = c.oid where {chosen} order by 1, 2",
        "indexes": "select c.relname, x.relname, pg_get_indexdef(x.oid), indisvalid from pg_class c"
        f" join pg_index i on indrelid = c.oid join pg_class x on x.oid = indexrelid where {chosen}"
        " order by 1, 2",
        "sequences": "select c.relname, seqstart, seqincrement, seqmin, seqmax, seqcycle,"
        f" pg_sequence_last_value(c.oid) from pg_sequence join pg_class c on c.oid = seqrelid"
        f" where {chosen} order by 1",
    }
    return {name: psql(dsn, query) for name, query in queries.items()}


def version_of(dsn: str, table: str) -> TableSchema:
    [(oid,)] = psql(dsn, f"select '{table}'::regclass::oid::int8")
    from pgstream_dagster.source.connect import connect

    with closing(connect(dsn)) as session:
        return describe(session, 1, oid)


def test_tables_are_created_as_on_the_source_indexes_after_the_copy(dsn: str, replica: str) -> None:
    """P80, P81: with their defaults, and before any row comes."""
    psql(dsn, *SOURCE, "select nextval('shop.numbers'), nextval('shop.numbers')")
    h = History()
    with opened(replica, dsn) as sink:
        before = shape(replica)
        assert before["columns"] == shape(dsn)["columns"]
        assert [name for _, name, _, _ in before["indexes"]] == [
            "children_pkey",
            "parents_pkey",
            "parted_pkey",
            "parted_1_pkey",
        ]
        parents, children, parted = (
            version_of(dsn, f"shop.{name}") for name in ("parents", "children", "parted")
        )
        row = {"id": "7", "n": "50", "m": "{low,high}", "c": "abc", "s": "[1,2)", "total": "1.50"}
        row |= {"p": "(1,low)", "e": "Aa", "v": None}
        sink.deliver(batch(h.copy(parents), h.read(parents, **row)))
        sink.deliver(batch(h.copy(children), h.read(children, a="1", b="3", parent="7")))
        sink.deliver(batch(h.copy(parted)))
        assert sink.deliver(batch(h.insert(parted, id="5", t="x"))) == {}
        assert shape(replica)["constraints"] == shape(dsn)["constraints"]
        assert shape(replica)["indexes"] == shape(dsn)["indexes"]
        [(doubled, mood)] = psql(replica, "select doubled, m::text from shop.parents")
        assert (str(doubled), mood) == ("3.00", "{low,high}")
        last_values = {name: last for name, *_, last in shape(replica)["sequences"]}
        assert last_values == {"numbers": 55, "parents_id_seq": 7, "children_b_seq": 3}
    with opened(replica, dsn) as sink:
        assert shape(replica)["indexes"] == shape(dsn)["indexes"]


def test_what_the_source_gets_later_comes_with_its_first_rows(dsn: str, replica: str) -> None:
    psql(dsn, *SOURCE)
    h = History()
    with opened(replica, dsn) as sink:
        psql(
            dsn,
            "create type shop.size as enum ('s')",
            "create table shop.later (id int primary key, size shop.size, n serial)",
            "create table shop.parted_2 partition of shop.parted for values from (100) to (200)",
            "alter type shop.mood add value 'middle' after 'low'",
        )
        later, parted = (version_of(dsn, f"shop.{name}") for name in ("later", "parted"))
        changes = [h.insert(later, id="1", size="s", n="1"), h.insert(parted, id="150", t="x")]
        assert sink.deliver(batch(*changes)) == {}
        assert psql(replica, "select id from shop.parted_2") == [(150,)]
        parents = version_of(dsn, "shop.parents")
        row = dict.fromkeys(["c", "s", "p", "e", "v"])
        insert = h.insert(parents, id="1", n="1", m="{middle}", total="1", **row)
        with pytest.raises(SinkUnreachable, match="1 labels"):
            sink.deliver(batch(insert))
        sink.open()
        assert sink.deliver(batch(insert)) == {}
    [(labels,)] = psql(replica, "select enum_range(null::shop.mood)::text")
    assert labels == "{low,middle,high}"


def test_a_table_that_was_altered_since_follows_its_history(dsn: str, replica: str) -> None:
    psql(dsn, *SOURCE)
    old = version_of(dsn, "shop.children")
    psql(
        dsn,
        "alter table shop.children rename parent to owner",
        "alter table shop.children add note text",
    )
    new = version_of(dsn, "shop.children")
    h = History()
    with opened(replica, dsn) as sink:
        sink.deliver(batch(h.copy(old), h.read(old, a="1", b="1", parent="5")))
        sink.deliver(batch(h.insert(new, a="2", b="2", owner="6", note="n")))
    names = [name for _, name, _, _ in shape(replica)["indexes"]]
    assert names[0] == "children_parent_idx"
    rows = psql(replica, "select a, owner, note from shop.children order by a")
    assert rows == [(1, 5, None), (2, 6, "n")]


def test_a_foreign_key_that_does_not_hold_yet_is_made_without_a_check(
    dsn: str, replica: str
) -> None:
    psql(dsn, *SOURCE)
    parents, children = (version_of(dsn, f"shop.{name}") for name in ("parents", "children"))
    h = History()
    with opened(replica, dsn) as sink:
        sink.deliver(batch(h.copy(children), h.read(children, a="1", b="3", parent="9")))
        sink.deliver(batch(h.copy(parents)))
    [(is_checked,)] = psql(replica, "select convalidated from pg_constraint where contype = 'f'")
    assert not is_checked


def test_a_target_that_is_the_source_is_refused(dsn: str) -> None:
    psql(dsn, *SOURCE)
    with pytest.raises(SinkRefused, match="its target is the source"), opened(dsn, dsn):
        pass


def test_a_missing_table_is_made_from_the_log_when_the_source_has_dropped_it(
    dsn: str, replica: str
) -> None:
    psql(dsn, *SOURCE)
    gone = replace(version_of(dsn, "shop.left_out"), relation_id=1, name="gone")
    h = History()
    with opened(replica, dsn) as sink:
        assert sink.deliver(batch(h.insert(gone, id="1"))) == {}
    with psycopg.connect(replica) as connection:
        assert connection.execute("select id from shop.gone").fetchall() == [(1,)]


def test_tables_of_the_schema_alone_are_made_with_their_indexes_and_no_rows(dsn, replica):
    psql(dsn, *SOURCE, "insert into shop.parents default values")
    with opened(replica, dsn, tables=("public.*",), schema_only=("shop.*",)):
        assert shape(replica) == shape(dsn)
    assert psql(replica, "select count(*) from shop.parents") == [(0,)]
    assert psql(replica, "select to_regclass('shop.left_out')") == [(None,)]
