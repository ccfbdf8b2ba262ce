"""Relations as the catalog has them, and Relation messages with the attnums it gives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from pgstream_dagster.errors import RelationGone
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema
from pgstream_dagster.source import catalog
from pgstream_dagster.source.connect import connect
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.pgoutput import Relation
from tests.support.plugins.cluster import psql

pytestmark = pytest.mark.every_major


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with connect(dsn) as connection:
        yield connection


Connection = psycopg.Connection[tuple[object, ...]]


def oid(dsn: str, table: str) -> int:
    return psql(dsn, f"select '{table}'::regclass::oid::bigint")[0][0]


def described(dsn: str, connection: Connection, table: str = "t") -> TableSchema:
    return catalog.describe(connection, 1, oid(dsn, table))


ID = pgoutput.RelationColumn("id", 23, -1, in_key=False)
B = pgoutput.RelationColumn("b", 23, -1, in_key=False)


class Wire:
    """The Relation messages that pgoutput really sends, from a slot that is read by SQL."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._slot = f"w_{psql(dsn, 'select current_database()')[0][0]}"
        psql(
            dsn,
            "create publication wire for all tables with (publish_via_partition_root = true)",
            f"select pg_create_logical_replication_slot('{self._slot}', 'pgoutput')",
        )

    def relations(self) -> list[Relation]:
        rows = psql(
            self._dsn,
            f"select data from pg_logical_slot_get_binary_changes('{self._slot}', null, null,"
            " 'proto_version', '1', 'publication_names', 'wire')",
        )
        messages = [
            pgoutput.parse(bytes(data), streamed=False) for (data,) in rows if data[:1] == b"R"
        ]
        return [message for message in messages if isinstance(message, Relation)]


def test_columns_have_what_the_catalog_says(dsn: str, connection: Connection) -> None:
    psql(
        dsn,
        "create type mood as enum ('a')",
        "create table t (gone int, id bigint primary key, n numeric(12, 2) not null default 7,"
        " m mood, v varchar(5)[], g int generated always as (1) stored)",
        "alter table t drop column gone",
    )
    schema = described(dsn, connection)
    assert [(c.name, c.attnum, c.type_name, c.not_null, c.default) for c in schema.columns] == [
        ("id", 2, "bigint", True, None),
        ("n", 3, "numeric(12,2)", True, "7"),
        ("m", 4, "public.mood", False, None),
        ("v", 5, "character varying(5)[]", False, None),
    ]
    assert schema.key == ("id",)
    assert schema.full_name == "public.t"


def test_the_value_type_says_what_the_text_looks_like(dsn: str, connection: Connection) -> None:
    expected = {
        "integer": "int4",
        "numeric(12,2)": "numeric",
        "timestamp with time zone": "timestamptz",
        '"char"': "char",
        "char(3)": "bpchar",
        "varchar(5)[]": "varchar[]",
        "int[][]": "int4[]",
        "mood": "enum",
        "mood[]": "enum[]",
        "pair": "composite",
        "pair[]": "composite[]",
        "t": "composite",
        "positive": "int4",
        "small": "int4",
        "small[]": "int4[]",
        "smalls": "int4[]",
        "smalls[]": "int4[][]",
        "moods": "enum[]",
        "information_schema.sql_identifier": "name",
        "int4range": "int4range",
        "datemultirange": "datemultirange",
        "spread": "range",
        "spread[]": "range[]",
        "spreads": "multirange",
        "int2vector": "int2vector",
        "oidvector[]": "oidvector[]",
        "regclass": "regclass",
        "box[]": "box[]",
    }
    psql(
        dsn,
        "create type mood as enum ('a')",
        "create type pair as (a int, b text)",
        "create domain positive as int check (value > 0)",
        "create domain small as positive check (value < 10)",
        "create domain smalls as small[]",
        "create domain moods as mood[]",
        "create type spread as range (subtype = text, multirange_type_name = spreads)",
        "create table t (id int)",
        f"create table u ({', '.join(f'c{i} {name}' for i, name in enumerate(expected))})",
    )
    value_types = [column.value_type for column in described(dsn, connection, "u").columns]
    assert dict(zip(expected, value_types, strict=True)) == expected


def test_only_asked_for_columns_are_described(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t (a int primary key, b int, g int generated always as (1) stored)")
    schema = catalog.describe(connection, 1, oid(dsn, "t"), ["g", "a"])
    assert [c.name for c in schema.columns] == ["a", "g"]
    without_key = catalog.describe(connection, 1, oid(dsn, "t"), ["b"])
    assert without_key.key == ()


def test_a_dropped_relation_is_gone(connection: Connection) -> None:
    with pytest.raises(RelationGone):
        catalog.describe(connection, 1, 4_000_000_000)


def test_a_table_without_columns_is_described(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t ()")
    assert described(dsn, connection).columns == ()


@pytest.mark.parametrize(
    ("definition", "alter", "identity", "key"),
    [
        ("a int, b int, primary key (b, a)", "", "DEFAULT", ("b", "a")),
        ("a int, b int", "", "DEFAULT", ()),
        ("a int primary key, b int", "replica identity nothing", "NOTHING", ()),
        ("a int primary key, b int", "replica identity full", "FULL", ("a",)),
        ("a int, b int", "replica identity full", "FULL", ()),
        ("a int primary key deferrable, b int", "replica identity full", "FULL", ()),
        ("a int primary key deferrable, b int", "", "DEFAULT", ()),
        (
            "a int primary key, b int not null unique",
            "replica identity using index t_b_key",
            "INDEX",
            ("b",),
        ),
        ("a int, b int, primary key (a) include (b)", "", "DEFAULT", ("a",)),
        (
            "a int primary key, b int not null, c int not null, unique (c, b)",
            "replica identity using index t_c_b_key",
            "INDEX",
            ("c", "b"),
        ),
    ],
)
def test_key_is_what_the_old_image_is_sure_to_have(
    dsn: str,
    connection: Connection,
    definition: str,
    alter: str,
    identity: str,
    key: tuple[str, ...],
) -> None:
    psql(dsn, f"create table t ({definition})", *([f"alter table t {alter}"] if alter else []))
    schema = described(dsn, connection)
    assert schema.identity is ReplicaIdentity[identity]
    assert schema.key == key


@pytest.mark.parametrize(
    "definition",
    [
        "a int, g int generated always as (a * 2) stored, primary key (a, g)",
        "a int, g int generated always as (a * 2) stored primary key",
    ],
)
def test_a_key_with_a_column_that_is_not_sent_is_none(
    dsn: str, connection: Connection, definition: str
) -> None:
    psql(dsn, f"create table t ({definition})")
    wire, copied = Wire(dsn), described(dsn, connection)
    psql(dsn, "insert into t values (1)")
    (relation,) = wire.relations()
    resolved = catalog.resolve(connection, 1, relation, copied)
    assert copied.key == resolved.schema.key == ()
    psql(dsn, "alter table t alter g drop expression", "insert into t values (8, 9)")
    (relation,) = wire.relations()
    resolved = catalog.resolve(connection, 1, relation, resolved.schema)
    assert resolved.schema.key == described(dsn, connection).key != ()


NULLABLE_KEY = (
    "create table t (k int, x text)",
    "insert into t values (null, 'a'), (null, 'b')",
    "create unique index i on t (k)",
    "alter table t add constraint n not null k not valid",
    "alter table t replica identity using index i",
)


@pytest.mark.majors(since=18)
def test_a_key_that_may_be_null_is_none_until_that_is_validated(
    dsn: str, connection: Connection
) -> None:
    psql(dsn, *NULLABLE_KEY)
    wire, copied = Wire(dsn), described(dsn, connection)
    psql(dsn, "insert into t values (1)")
    (relation,) = wire.relations()
    assert copied.key == catalog.resolve(connection, 1, relation, copied).schema.key == ()
    psql(
        dsn,
        "update t set k = 5 where x = 'a'",
        "update t set k = 6 where x = 'b'",
        "alter table t validate constraint n",
        "insert into t values (2)",
    )
    assert described(dsn, connection).key == ("k",)
    assert catalog.resolve(connection, 1, wire.relations()[-1], copied).schema.key == ("k",)


def test_an_identity_index_that_was_dropped_leaves_no_key(dsn: str, connection: Connection) -> None:
    psql(
        dsn,
        "create table t (a int primary key, b int not null)",
        "create unique index i on t (b)",
        "alter table t replica identity using index i",
        "drop index i",
    )
    schema = described(dsn, connection)
    assert (schema.identity, schema.key) == (ReplicaIdentity.INDEX, ())


def test_the_key_of_a_partition_tree_is_its_roots(dsn: str, connection: Connection) -> None:
    psql(
        dsn,
        "create table t (x int, a int, b int, primary key (b, a)) partition by range (a)",
        "create table t1 partition of t for values from (0) to (10)",
    )
    assert described(dsn, connection).key == ("b", "a")


VALUES = {
    "text": ["plain", 'q"u,{o}\\te', "", "NULL", " sp ace ", "{}", "two\nlines", "\\", "'"],
    "boolean": ["t", "f"],
    "integer[]": ["{1,2,NULL}", "{}", "[0:1]={5,6}", "{{1,2},{3,4}}"],
    "text[]": ['{"a,b","\\"","NULL",NULL,"{}","\\\\"}'],
    "box": ["(1,1),(0,0)"],
    "box[]": ["{(1,1),(0,0);(2,2),(1,1)}"],
    "point": ["(1.5,-2)"],
    "bytea": ["\\x00ff22"],
    "jsonb": ['{"a": [1, "\\"x\\""]}'],
    "timestamptz": ["2024-02-29 12:00:00+00"],
    "interval": ["1 year 2 mons 3 days 04:05:06.789"],
    "double precision": ["0.1", "NaN", "-Infinity"],
    "numeric(12,2)": ["7.50"],
    "character(5)": ["ab   "],
    '"char"': ["x"],
    "name": ["n"],
    "inet": ["10.0.0.1"],
    "int4range": ["[1,5)", "empty"],
    "money": ["$12.50"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_value_of_old_rows_is_as_its_output_function_gives_it(
    dsn: str, connection: Connection, kind: str
) -> None:
    psql(dsn, "create table t (id int)", "insert into t values (1)")
    for index, value in enumerate(VALUES[kind]):
        escaped = value.replace("'", "''")
        psql(dsn, f"alter table t add c{index} {kind} default '{escaped}'")
    missing = [column.missing for column in described(dsn, connection).columns[1:]]
    shown = ", ".join(f"format('%s', c{i})" for i in range(len(missing)))
    (row,) = connection.execute(f"select {shown} from public.t").fetchall()  # type: ignore[arg-type]
    assert missing == list(row) == VALUES[kind]


def test_a_column_without_a_default_has_no_old_value(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t (id int)", "insert into t values (1)", "alter table t add x int")
    assert described(dsn, connection).columns[1].missing is None


def test_a_locked_table_blocks_no_description(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t (id int default 7)")
    relation_id = oid(dsn, "t")
    with connect(dsn) as altering:
        altering.autocommit = False
        altering.execute("alter table public.t add x int")
        connection.execute("set lock_timeout = '2s'")
        schema = catalog.describe(connection, 1, relation_id)
        altering.rollback()
    assert [c.name for c in schema.columns] == ["id"]


# --- Relation messages ------------------------------------------------------------------------


def test_a_message_gets_the_attnums_of_the_catalog(dsn: str, connection: Connection) -> None:
    wire = Wire(dsn)
    psql(
        dsn,
        "create table t (gone int, id bigint primary key, n numeric(12, 2) default 7,"
        " v varchar(9))",
        "alter table t drop column gone",
        "insert into t values (1)",
    )
    (relation,) = wire.relations()
    resolved = catalog.resolve(connection, 1, relation, None)
    assert resolved.certain
    assert resolved.schema == described(dsn, connection)


def test_messages_read_late_are_resolved_as_of_their_time(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t (id bigint primary key, a int, b text)")
    wire, previous = Wire(dsn), described(dsn, connection)
    psql(
        dsn,
        "insert into t values (1, 1, 'x')",
        "alter table t rename a to a2",
        "insert into t values (2, 2, 'y')",
        "alter table t add c text default 'old'",
        "insert into t values (3, 3, 'z')",
        "alter table t drop b",
        "insert into t values (4, 4)",
    )
    versions: list[TableSchema] = []
    for relation in wire.relations():
        resolved = catalog.resolve(connection, 1, relation, previous)
        assert resolved.certain
        versions.append(previous := resolved.schema)
    assert [v.attnums for v in versions] == [
        {"id": 1, "a": 2, "b": 3},
        {"id": 1, "a2": 2, "b": 3},
        {"id": 1, "a2": 2, "b": 3, "c": 4},
        {"id": 1, "a2": 2, "c": 4},
    ]
    assert [v.columns[-1].missing for v in versions] == [None, None, "old", "old"]
    assert all(v.key == ("id",) for v in versions)
    assert versions[-1] == described(dsn, connection)


def test_drop_and_add_with_the_same_name_and_type_is_uncertain(
    dsn: str, connection: Connection
) -> None:
    psql(dsn, "create table t (id int primary key, a int)")
    wire, previous = Wire(dsn), described(dsn, connection)
    psql(dsn, "alter table t drop a, add a int", "insert into t values (1)")
    (relation,) = wire.relations()
    resolved = catalog.resolve(connection, 1, relation, previous)
    assert not resolved.certain
    assert resolved.schema.attnums == {"id": 1, "a": 3}


def test_drop_and_add_with_another_type_is_certain(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t (id int primary key, a int, b int)")
    wire, previous = Wire(dsn), described(dsn, connection)
    psql(dsn, "alter table t drop a, drop b", "alter table t add a int, add b text")
    psql(dsn, "insert into t values (1)")
    (relation,) = wire.relations()
    resolved = catalog.resolve(connection, 1, relation, previous)
    assert resolved.certain
    assert resolved.schema.attnums == {"id": 1, "a": 4, "b": 5}


def test_a_column_list_is_no_loss_of_columns(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t (id int primary key, a int, b int)")
    wire = Wire(dsn)
    psql(
        dsn,
        "drop publication wire",
        "create publication wire for table t (id, b)",
        "insert into t values (1)",
    )
    (relation,) = wire.relations()
    previous = catalog.describe(connection, 1, oid(dsn, "t"), ["id", "b"])
    resolved = catalog.resolve(connection, 1, relation, previous)
    assert resolved.certain
    assert resolved.schema.attnums == {"id": 1, "b": 3}
    assert resolved.schema == previous
    new = catalog.resolve(connection, 1, relation, None)
    assert new == resolved


def test_the_order_of_a_key_is_its_index_and_not_the_tables(
    dsn: str, connection: Connection
) -> None:
    psql(dsn, "create table t (a int, b int, primary key (b, a))")
    wire = Wire(dsn)
    psql(dsn, "insert into t values (1, 2)")
    (relation,) = wire.relations()
    assert catalog.resolve(connection, 1, relation, None).schema.key == ("b", "a")


def test_a_renamed_key_column_stays_the_key(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t (a int, b int, primary key (b, a))")
    wire, previous = Wire(dsn), described(dsn, connection)
    psql(
        dsn,
        "insert into t values (1, 2)",
        "alter table t rename b to bb",
        "insert into t values (2, 3)",
    )
    first, second = (catalog.resolve(connection, 1, r, previous).schema for r in wire.relations())
    assert (first.key, second.key) == (("b", "a"), ("bb", "a"))
    assert first.key_attnums == second.key_attnums == previous.key_attnums


def test_under_full_the_catalog_says_the_key(dsn: str, connection: Connection) -> None:
    psql(dsn, "create table t (a int primary key, b int)", "alter table t replica identity full")
    wire, previous = Wire(dsn), described(dsn, connection)
    psql(dsn, "insert into t values (1)")
    (relation,) = wire.relations()
    assert catalog.resolve(connection, 1, relation, previous).schema.key == ("a",)
    psql(dsn, "alter table t drop constraint t_pkey", "insert into t values (1)")
    (relation,) = wire.relations()
    assert catalog.resolve(connection, 1, relation, previous).schema.key == ()


def test_a_primary_key_dropped_under_default_leaves_no_key(
    dsn: str, connection: Connection
) -> None:
    psql(dsn, "create table t (a int primary key, b int)")
    wire, previous = Wire(dsn), described(dsn, connection)
    psql(dsn, "alter table t drop constraint t_pkey", "insert into t values (1)")
    (relation,) = wire.relations()
    assert catalog.resolve(connection, 1, relation, previous).schema.key == ()


def test_old_values_outlive_the_rewrite_that_makes_the_catalog_forget_them(
    dsn: str, connection: Connection
) -> None:
    psql(
        dsn,
        "create table t (id int)",
        "insert into t values (1)",
        "alter table t add x int default 7",
    )
    wire, previous = Wire(dsn), described(dsn, connection)
    psql(dsn, "vacuum full t", "insert into t values (2)")
    (relation,) = wire.relations()
    assert described(dsn, connection).columns[1].missing is None
    resolved = catalog.resolve(connection, 1, relation, previous)
    assert resolved.schema.schema_id == previous.schema_id


def test_a_relation_dropped_since_is_resolved_by_what_is_known(
    dsn: str, connection: Connection
) -> None:
    psql(dsn, "create table t (a int, b int, primary key (b, a))")
    wire, previous = Wire(dsn), described(dsn, connection)
    psql(dsn, "insert into t values (1, 2)", "drop table t")
    (relation,) = wire.relations()
    resolved = catalog.resolve(connection, 1, relation, previous)
    assert resolved.certain
    assert resolved.schema.schema_id == previous.schema_id


def test_a_type_that_is_gone_has_no_name_and_causes_no_error(
    dsn: str, connection: Connection
) -> None:
    psql(dsn, "create type mood as enum ('a')", "create table t (id int, m mood)")
    wire = Wire(dsn)
    psql(dsn, "insert into t values (1, 'a')", "drop table t", "drop type mood")
    (relation,) = wire.relations()
    columns = catalog.resolve(connection, 1, relation, None).schema.columns
    assert [c.type_name for c in columns] == ["integer", ""]
    assert [c.value_type for c in columns] == ["int4", ""]


def test_partitions_are_described_by_their_root(dsn: str, connection: Connection) -> None:
    psql(
        dsn,
        "create table t (a int primary key, b int) partition by range (a)",
        "create table other_order (b int, a int not null)",
        "alter table t attach partition other_order for values from (0) to (10)",
    )
    wire, root = Wire(dsn), described(dsn, connection)
    psql(dsn, "insert into t values (1, 2)")
    relations = {relation.relation_id: relation for relation in wire.relations()}
    resolved = catalog.resolve(connection, 1, relations[root.relation_id], None)
    assert resolved.schema == root


def test_a_column_added_to_a_partition_tree_has_its_value_in_older_rows(
    dsn: str, connection: Connection
) -> None:
    """The root has no rows and knows of none; its leaves do, each under an attnum of its own."""
    psql(
        dsn,
        "create table t (id int primary key, a int) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10) partition by range (id)",
        "create table t11 (gone int, a int, id int not null)",
        "alter table t11 drop gone",
        "alter table t1 attach partition t11 for values from (0) to (5)",
        "alter table t add b text default 'older, than', add c int",
        "create table t2 partition of t for values from (10) to (20)",
    )
    missing = {c.name: c.missing for c in described(dsn, connection).columns}
    assert missing == {"id": None, "a": None, "b": "older, than", "c": None}


def test_a_transaction_that_does_not_show_yet_is_waited_for(
    dsn: str, connection: Connection
) -> None:
    psql(dsn, "create table t (id int, a int)")
    previous = described(dsn, connection)
    relation = Relation(
        oid(dsn, "t"),
        "public",
        "t",
        ReplicaIdentity.DEFAULT,
        (ID, B),
    )
    with connect(dsn) as altering:
        altering.autocommit = False
        altering.execute("alter table public.t drop a")
        altering.execute("alter table public.t add b int")
        ((xid,),) = altering.execute("select pg_current_xact_id()::xid::text::bigint").fetchall()
        committing = threading.Timer(0.5, altering.commit)
        committing.start()
        resolved = catalog.resolve(connection, 1, relation, previous, xid=xid)
        committing.join()
    assert resolved.certain
    assert resolved.schema.attnums == {"id": 1, "b": 3}


def test_a_transaction_that_never_shows_leaves_its_columns_uncertain(
    dsn: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "VISIBLE_SECONDS", 0.2)
    psql(dsn, "create table t (id int)")
    previous = described(dsn, connection)
    relation = Relation(
        oid(dsn, "t"),
        "public",
        "t",
        ReplicaIdentity.DEFAULT,
        (ID,),
    )
    with connect(dsn) as writing:
        writing.autocommit = False
        ((xid,),) = writing.execute("select pg_current_xact_id()::xid::text::bigint").fetchall()
        assert not catalog.resolve(connection, 1, relation, previous, xid=xid).certain
    assert catalog.resolve(connection, 1, relation, previous, xid=xid).certain


# --- truncated tables -------------------------------------------------------------------------

INSERT = "insert into t values (1, 'a')"
RETYPE = "alter table t alter x type text using x || '!'"


def truncated_file(dsn: str, connection: Connection, *statements: str) -> int | None:
    """What is known of the file of `t` after one transaction, as the stream gives its id."""
    with psycopg.connect(dsn) as writing:
        ((xid,),) = writing.execute("select pg_current_xact_id()::xid::text::bigint").fetchall()
        for statement in statements:
            writing.execute(statement)  # type: ignore[arg-type]
    return catalog.truncated_file(connection, oid(dsn, "t"), xid, top_xid=xid)


@pytest.mark.parametrize(
    "transaction",
    [
        ["truncate t"],
        ["truncate t, u restart identity cascade"],
        ["truncate t", INSERT],
        ["truncate t", INSERT, "truncate t", INSERT],
        ["truncate t", INSERT, "create index on u (a)", "savepoint s", INSERT, "rollback to s"],
    ],
)
def test_the_file_of_a_truncate_is_identified(
    dsn: str, connection: Connection, transaction: list[str]
) -> None:
    psql(dsn, "create table t (id int, x text)", "create table u (a int)", INSERT)
    file = truncated_file(dsn, connection, *transaction)
    assert [(file,)] == psql(dsn, "select pg_relation_filenode('t')::bigint")


@pytest.mark.parametrize(
    "transaction",
    [
        ["truncate t", INSERT, RETYPE],
        ["truncate t", INSERT, "alter table t add v float default random()"],
        ["truncate t", "alter table t set unlogged", INSERT, "alter table t set logged"],
        [INSERT, "truncate t"],
        [RETYPE],
        ["truncate u, t"],
        ["savepoint s", "truncate t", "release s"],
        ["truncate t", INSERT, RETYPE, "savepoint s", "grant all on t to public", "rollback to s"],
        ["truncate t", "savepoint s", "grant all on t to public", "rollback to s"],
    ],
)
def test_a_file_that_may_be_a_rewrites_is_not_taken_for_a_truncates(
    dsn: str, connection: Connection, transaction: list[str]
) -> None:
    psql(dsn, "create table t (id int, x text)", "create table u ()", INSERT)
    assert truncated_file(dsn, connection, *transaction) is None


@pytest.mark.parametrize(
    "later",
    ["vacuum full t", RETYPE, "truncate t", "grant all on t to public", f"begin; {RETYPE}; abort"],
)
def test_what_comes_after_a_truncate_leaves_its_file_unknown(
    dsn: str, connection: Connection, later: str
) -> None:
    psql(dsn, "create table t (id int, x text)")
    with psycopg.connect(dsn) as writing:
        ((xid,),) = writing.execute("select pg_current_xact_id()::xid::text::bigint").fetchall()
        writing.execute("truncate t")
    assert catalog.truncated_file(connection, oid(dsn, "t"), xid, top_xid=xid) is not None
    psql(dsn, later)
    assert catalog.truncated_file(connection, oid(dsn, "t"), xid, top_xid=xid) is None


def test_the_files_of_a_partition_tree_are_never_identified(
    dsn: str, connection: Connection
) -> None:
    """A leaf emptied behind its root's TRUNCATE, in the same transaction, is not in the stream."""
    psql(
        dsn,
        "create table t (a int) partition by range (a)",
        "create table t1 partition of t for values from (0) to (10)",
    )
    assert truncated_file(dsn, connection, "truncate t", "insert into t values (1)") is None
