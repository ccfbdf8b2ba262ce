"""Publications: made, kept up to date, left alone, and read exactly as pgoutput sends them."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.errors import AccessRefused, NoTables, PublicationMissing, TableLocked
from pgstream_dagster.source import publication
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.publication import PublishedTable, Tables
from tests.support.plugins.cluster import psql

pytestmark = pytest.mark.every_major

SCHEMA = "tables in schema public"


def ensure(dsn: str, tables: Tables = "all", name: str = "p") -> None:
    with connect(dsn) as connection:
        publication.ensure(connection, name, tables)


def is_all_tables(dsn: str) -> bool:
    with connect(dsn) as connection:
        state = publication.inspect(connection, "p")
    assert state is not None
    return state.is_all_tables


def made_by(dsn: str) -> list[tuple]:
    """The transaction that last wrote the publication or its list."""
    return psql(
        dsn,
        "select oid, xmin::text from pg_publication"
        " union all select oid, xmin::text from pg_publication_rel order by 1",
    )


def published(dsn: str, name: str = "p") -> dict[str, PublishedTable]:
    with connect(dsn) as connection:
        return {table.full_name: table for table in publication.published(connection, name)}


def test_all_tables_of_a_superuser_include_those_made_later(dsn: str) -> None:
    psql(dsn, "create table a (id int)")
    ensure(dsn)
    assert is_all_tables(dsn)
    psql(dsn, "create table b (id int)")
    assert set(published(dsn)) == {"public.a", "public.b"}
    before = made_by(dsn)
    ensure(dsn)
    assert made_by(dsn) == before


def test_everything_that_changes_rows_is_published_under_the_root(dsn: str) -> None:
    psql(dsn, "create table a (id int)")
    ensure(dsn)
    with connect(dsn) as connection:
        state = publication.inspect(connection, "p")
    assert state is not None
    assert state.is_complete
    assert state.is_via_root
    assert state.is_ours


def test_patterns_list_what_matches_now_and_are_kept_up_to_date(dsn: str) -> None:
    psql(
        dsn,
        "create schema shop",
        "create table shop.a ()",
        "create table shop.b ()",
        "create table c ()",
    )
    ensure(dsn, ["shop.*"])
    assert set(published(dsn)) == {"shop.a", "shop.b"}
    psql(dsn, "create table shop.d ()")
    ensure(dsn, ["shop.*", "c"])
    assert set(published(dsn)) == {"public.c", "shop.a", "shop.b", "shop.d"}
    before = made_by(dsn)
    ensure(dsn, ["shop.*", "c"])
    assert made_by(dsn) == before
    ensure(dsn, ["shop.a"])
    assert set(published(dsn)) == {"shop.a"}


def test_column_lists_and_filters_of_listed_tables_stay(dsn: str) -> None:
    psql(dsn, "create table a (id int primary key, x int, y int)", "create table b ()")
    ensure(dsn, ["a"])
    psql(dsn, "alter publication p set table only a (id, x) where (id > 5)")
    ensure(dsn, ["a", "b"])
    table = published(dsn)["public.a"]
    assert table.columns == ("id", "x")
    assert table.row_filter == "(id > 5)"


def test_all_and_patterns_follow_each_other_and_a_list_stays_one(dsn: str) -> None:
    psql(dsn, "create table a ()", "create table b ()")
    ensure(dsn, "all")
    ensure(dsn, ["b"])
    assert not is_all_tables(dsn)
    assert set(published(dsn)) == {"public.b"}
    ensure(dsn, "all")
    assert not is_all_tables(dsn)
    assert set(published(dsn)) == {"public.a", "public.b"}


def test_excluded_tables_stay_out_with_their_partitions(dsn: str) -> None:
    psql(
        dsn,
        "create table a ()",
        "create table tmp_a ()",
        "create table tmp_q (id int) partition by range (id)",
        "create table leaf partition of tmp_q default",
    )
    with connect(dsn) as connection:
        publication.ensure(connection, "p", "all", exclude=["tmp_*"])
    assert not is_all_tables(dsn)
    assert set(published(dsn)) == {"public.a"}


def test_a_table_left_out_does_not_join_a_list_and_a_listed_one_stays(dsn: str) -> None:
    psql(dsn, "create table a ()", "create table b ()")
    ids = dict(psql(dsn, "select relname, oid::bigint from pg_class where relname in ('a', 'b')"))
    with connect(dsn) as connection:
        publication.ensure(connection, "p", "all", left_out={ids["b"]})
        assert set(published(dsn)) == {"public.a"}
        publication.ensure(connection, "p", "all", left_out={ids["a"], ids["b"]})
    assert set(published(dsn)) == {"public.a"}


def test_a_publication_made_by_hand_is_neither_changed_nor_dropped(dsn: str) -> None:
    psql(dsn, "create table a ()", "create table b ()", "create publication p for table a")
    before = made_by(dsn)
    ensure(dsn, "all")
    assert made_by(dsn) == before
    assert set(published(dsn)) == {"public.a"}
    with connect(dsn) as connection:
        assert not publication.drop(connection, "p")
        assert publication.inspect(connection, "p") is not None


def test_ours_is_dropped_once(dsn: str) -> None:
    psql(dsn, "create table a ()")
    ensure(dsn)
    with connect(dsn) as connection:
        assert publication.drop(connection, "p")
        assert not publication.drop(connection, "p")
        assert publication.inspect(connection, "p") is None


def test_a_missing_publication_is_named(dsn: str) -> None:
    with (
        connect(dsn) as connection,
        pytest.raises(PublicationMissing, match="pgstream resnapshot"),
    ):
        publication.published(connection, "p")


def test_an_empty_publication_is_empty_and_not_missing(dsn: str) -> None:
    psql(dsn, "create publication p")
    assert published(dsn) == {}


def test_nothing_to_publish_is_named(dsn: str) -> None:
    psql(dsn, "create view v as select 1")
    with pytest.raises(NoTables, match=r"nope, v"):
        ensure(dsn, ["nope", "v"])


def test_a_role_that_is_no_superuser_lists_the_tables_it_owns(dsn: str) -> None:
    ((database,),) = psql(dsn, "select current_database()")
    role = f"r_{database}"
    psql(
        dsn,
        f"create role {role} login replication",
        f"grant create on database {database} to {role}",
        f"create schema app authorization {role}",
        "create table public.other ()",
    )
    try:
        ours = make_conninfo(dsn, user=role)
        psql(ours, "create table app.a ()")
        ensure(ours, ["app.*"])
        assert not is_all_tables(ours)
        assert set(published(ours)) == {"app.a"}
        with connect(dsn) as connection:
            publication.drop(connection, "p")
        with pytest.raises(AccessRefused, match="must be owner of table other"):
            ensure(ours, "all")
        psql(dsn, "drop table public.other")
        ensure(ours, "all")
        assert not is_all_tables(ours)
        psql(ours, "create table app.b ()")
        ensure(ours, "all")
        assert set(published(ours)) == {"app.a", "app.b"}
    finally:
        psql(dsn, f"drop owned by {role} cascade", f"drop role {role}")


def test_what_cannot_be_captured_is_not_listed(dsn: str) -> None:
    psql(
        dsn,
        "create table a ()",
        "create unlogged table u ()",
        "create view v as select 1",
        "create materialized view m as select 1",
        "create foreign data wrapper w",
        "create server s foreign data wrapper w",
        "create foreign table f () server s",
    )
    ensure(dsn, ["*.*"])
    assert set(published(dsn)) == {"public.a"}


def test_a_partition_tree_is_one_table_with_its_leaves(dsn: str) -> None:
    psql(
        dsn,
        "create table q (a int, b int) partition by range (a)",
        "create table q1 partition of q for values from (0) to (10)",
        "create table q2 partition of q for values from (10) to (20) partition by range (b)",
        "create table q2a partition of q2 for values from (0) to (10)",
        "create table lone (a int) partition by list (a)",
    )
    ensure(dsn, ["*"])
    tables = published(dsn)
    assert set(tables) == {"public.q", "public.lone"}
    leaves = dict(
        psql(
            dsn,
            "select oid::bigint, relfilenode::bigint from pg_class where relname in ('q1', 'q2a')",
        )
    )
    assert tables["public.q"].members == leaves
    assert tables["public.q"].kind == "p"
    assert tables["public.lone"].members == {}


def test_a_partition_alone_is_published_under_its_own_name(dsn: str) -> None:
    psql(
        dsn,
        "create table q (a int) partition by range (a)",
        "create table q1 partition of q for values from (0) to (10)",
    )
    ensure(dsn, ["q1"])
    assert set(published(dsn)) == {"public.q1"}


@pytest.mark.parametrize("listed", ["root", "middle", "leaf", "root, leaf", "middle, leaf"])
def test_nested_partitions_are_the_tables_that_postgres_publishes(dsn: str, listed: str) -> None:
    """P119: whatever level of a tree the publication lists."""
    psql(
        dsn,
        "create table root (a int primary key) partition by range (a)",
        "create table middle partition of root for values from (0) to (20) partition by range (a)",
        "create table leaf partition of middle for values from (0) to (10)",
        "create table other_leaf partition of middle for values from (10) to (20)",
        f"create publication p for table {listed} with (publish_via_partition_root = true)",
    )
    identities = psql(dsn, "select schemaname || '.' || tablename from pg_publication_tables")
    assert set(published(dsn)) == {name for (name,) in identities}


def test_inheritance_children_are_tables_of_their_own(dsn: str) -> None:
    psql(dsn, "create table parent (a int)", "create table child (b int) inherits (parent)")
    ensure(dsn, ["parent"])
    tables = published(dsn)
    assert set(tables) == {"public.parent"}
    assert len(tables["public.parent"].members) == 1


def test_columns_are_those_pgoutput_sends_in_their_order(dsn: str) -> None:
    psql(
        dsn,
        "create table t (z int, gone int, a int, g int generated always as (a * 2) stored, b text)",
        "alter table t drop column gone",
        "create table nothing ()",
    )
    ensure(dsn)
    ((version,),) = psql(dsn, "select current_setting('server_version_num')::int")
    tables = published(dsn)
    expected = ("z", "a", "g", "b") if version >= 180000 else ("z", "a", "b")
    assert tables["public.t"].columns == expected
    assert tables["public.t"].attnums == ((1, 3, 4, 5) if version >= 180000 else (1, 3, 5))
    assert tables["public.nothing"].columns == ()
    assert tables["public.nothing"].newest_attnum == 0


def test_columns_that_are_not_sent_count_for_the_newest_attnum(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int primary key, a int, gone int)",
        "alter table t drop column gone",
        "create publication p for table t (id)",
    )
    table = published(dsn)["public.t"]
    assert (table.attnums, table.newest_attnum) == ((1,), 3)


def test_an_entry_of_the_publication_lives_until_it_is_another_one(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int primary key, a int)",
        "create table u ()",
        "create publication p for table t",
    )
    first = published(dsn)["public.t"].versions.listing
    psql(dsn, "alter table t add b int", "alter publication p set table t, u")
    assert published(dsn)["public.t"].versions.listing == first
    seen = {first}
    for change in (
        "set table t (id)",
        "set table t",
        "set table t where (id > 5)",
        "drop table t; alter publication p add table t",
    ):
        psql(dsn, *f"alter publication p {change}".split("; "))
        now = published(dsn)["public.t"].versions.listing
        assert now not in seen, change
        seen.add(now)
    psql(dsn, "drop publication p", "create publication p for all tables")
    listings = {published(dsn)["public.t"].versions.listing}
    psql(dsn, "drop publication p", "create publication p for all tables")
    listings.add(published(dsn)["public.t"].versions.listing)
    assert len(listings - seen) == 2


@pytest.mark.parametrize(
    ("scope", "change", "is_other"),
    [
        ("table t", "alter publication p set (publish = 'insert')", True),
        ("table t", "alter publication p set (publish_via_partition_root = false)", True),
        ("table t", "alter publication p drop table t; alter publication p add table t", True),
        ("all tables", "alter publication p set (publish = 'insert')", True),
        (SCHEMA, "alter publication p drop {0}; alter publication p add {0}", True),
        (SCHEMA, "alter table t set schema away; alter table away.t set schema public", True),
        (SCHEMA, "alter table t1 set schema away; alter table away.t1 set schema public", False),
        ("table t", "alter table t set schema away; alter table away.t set schema public", False),
        ("table t", "alter publication p add table u; alter publication p drop table u", False),
        ("table t", "alter publication p set table u, t", False),
        ("table t", "alter publication p add tables in schema away", False),
        ("table t", "comment on publication p is 'x'", False),
        (SCHEMA, "grant all on t, t1 to public; analyze t; truncate t; vacuum full t1", False),
        (SCHEMA, "alter table t rename to v; alter table v rename to t", False),
        (SCHEMA, "alter table t add c int default random(); create index on t (a)", False),
        ("table t", "alter table t detach partition t1; alter table t attach {1}", True),
        ("table t", "alter table t1 detach partition t11; alter table t1 attach {2}", True),
        ("table t", "alter table t detach partition t1 concurrently", True),
    ],
)
def test_a_version_is_another_one_after_a_change_and_its_reverse(
    dsn: str, scope: str, change: str, is_other: bool
) -> None:
    t11 = "partition t11 for values from (0) to (5)"
    t1 = "partition t1 for values from (0) to (10)"
    psql(
        dsn,
        "create schema away",
        "create table u ()",
        "create table t (a int primary key) partition by range (a)",
        f"create table t1 partition of t {t1.removeprefix('partition t1')} partition by range (a)",
        f"create table t11 partition of t1 {t11.removeprefix('partition t11')}",
        f"create publication p for {scope} with (publish_via_partition_root = true)",
    )
    with connect(dsn) as connection:
        [(oid,)] = psql(dsn, "select 't'::regclass::oid::bigint")
        before = publication.versions(connection, "p", [oid])[oid]
        psql(dsn, *change.format(SCHEMA, t1, t11).split("; "))
        after = publication.versions(connection, "p", [oid])[oid]
    assert (replace(after, types=before.types) != before) == is_other
    assert len(before.edges) == 2


TYPES = (
    "create type mood as enum ('a', 'b')",
    "create type part as (m mood, n int)",
    "create type whole as (parts part[])",
    "create domain wrapped as whole",
    "create type moods as range (subtype = mood)",
    "create table other ()",
    "create table t (w wrapped, r moods, c cidr, v varchar(5), ts timestamp, plain int)",
    "create table o (who regclass[], plain int)",
    "create publication p for all tables",
)


@pytest.mark.parametrize(
    ("table", "changed", "change"),
    [
        ("t", {"label"}, "alter type mood rename value 'a' to 'c'"),
        (
            "t",
            {"label"},
            "alter type mood rename value 'a' to 'c'; alter type mood rename value 'c' to 'a'",
        ),
        ("t", {"composite"}, "alter type part add attribute x int"),
        ("t", {"composite"}, "alter type part drop attribute n"),
        ("t", {"column"}, "alter table t alter c type inet"),
        ("t", {"column"}, "alter table t alter ts type timestamptz"),
        ("o", {"names"}, "alter table other rename to another"),
        ("o", {"names"}, "drop table other"),
        ("o", {"names"}, "alter schema public rename to private"),
        ("t", set(), "alter type mood add value 'z' before 'a'"),
        ("t", set(), "alter type part rename attribute n to m2"),
        ("t", set(), "alter table t alter v type text"),
        ("t", set(), "alter table t alter v type varchar(50)"),
        ("t", set(), "alter table t drop c"),
        ("t", set(), "alter table t rename c to c2"),
        ("t", set(), "alter table other rename to another"),
        ("o", set(), "create temp table x (); drop table x"),
        ("o", set(), "alter table o alter plain set not null; truncate o"),
    ],
)
def test_what_the_text_of_values_depends_on_has_a_version(
    dsn: str, table: str, changed: set[str], change: str
) -> None:
    psql(dsn, *TYPES)
    with connect(dsn) as connection:
        [(oid,)] = psql(dsn, f"select '{table}'::regclass::oid::bigint")
        before = publication.versions(connection, "p", [oid])[oid].types
        psql(dsn, *change.split("; "))
        after = publication.versions(connection, "p", [oid])[oid].types
    others = {what.split()[0] for what, then in before.items() if after.get(what, then) != then}
    assert others == changed


def test_generated_columns_are_left_out_where_the_publication_does(dsn: str) -> None:
    psql(
        dsn,
        "create table t (a int, g int generated always as (a * 2) stored)",
        "create publication p for all tables",
    )
    assert published(dsn)["public.t"].columns == ("a",)


def test_names_of_any_kind_are_quoted(dsn: str) -> None:
    psql(dsn, 'create schema "Sch.""ema"', 'create table "Sch.""ema"."Tab le.é" ("Co,l""umn" int)')
    ensure(dsn, ['"Sch.""ema".*'], name='Pub "x"')
    table = published(dsn, 'Pub "x"')['"Sch.""ema"."Tab le.é"']
    assert table.columns == ('Co,l"umn',)


def test_sizes_are_estimated(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int, x text)",
        "insert into t select i, repeat('x', 1000) from generate_series(1, 800) as i",
        "analyze t",
    )
    ensure(dsn)
    table = published(dsn)["public.t"]
    assert table.estimated_rows == 800
    assert 100 <= table.pages <= 150


def test_a_rewrite_gives_a_member_another_file(dsn: str) -> None:
    psql(dsn, "create table t (id int)")
    ensure(dsn)
    before = published(dsn)["public.t"].members
    psql(dsn, "alter table t add x int default random()")
    after = published(dsn)["public.t"].members
    assert before != after
    assert [*before] == [*after]


def test_a_table_that_is_held_exclusively_is_not_waited_for_without_limit(dsn: str) -> None:
    psql(dsn, "create table a (id int primary key)", "create publication p for all tables")
    with psycopg.connect(dsn) as holder, connect(dsn) as session:
        holder.execute("lock table a in access exclusive mode")
        publication.limit_lock_waits(session, 0.2)
        pid = holder.info.backend_pid
        with pytest.raises(TableLocked) as caught:
            publication.published(session, "p")
    assert caught.value.table == "public.a"
    assert caught.value.held_by == [pid]
