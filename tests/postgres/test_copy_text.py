"""
One value, one text: what a copy reads of a value is byte for byte what the stream sends of it.

Every built-in type is tried, so a new major's new type fails here until it has a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster.copy import scan
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.publication import ensure, published
from pgstream_dagster.source.snapshot import exported
from pgstream_dagster.wire.columns import decode
from pgstream_dagster.wire.messages import join
from tests.support.plugins.cluster import psql

Rows = list[dict[str, str | None]]

SAMPLES: dict[str, list[str]] = {
    "bool": ["t", "f"],
    "bytea": ["", r"\x00ff27", "abc"],
    "char": ["", "x", r"\377"],
    "name": ["", "a name", "x" * 63],
    "int2": ["0", "-32768"],
    "int4": ["0", "-2147483648"],
    "int8": ["0", "9223372036854775807"],
    "int2vector": ["", "1 2 3"],
    "oidvector": ["", "1 2 3"],
    "oid": ["0", "4294967295"],
    "tid": ["(0,1)"],
    "xid": ["0", "4294967295"],
    "xid8": ["18446744073709551615"],
    "cid": ["7"],
    "text": ["", "a 'b' \"c\" \\ \t\n\r{},", "\N{SNOWMAN}\U0001f600\u200b"],
    "varchar": ["", "a  "],
    "bpchar": ["", "a  "],
    "json": [' {"a": 1, "a": 2} ', "null"],
    "jsonb": ['{"b": 1, "a": [1.50, null]}', "1" + "0" * 400],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "xml": [
        "<a/>",
        '<?xml version="1.0" encoding="UTF-8"?><a b="c"/>',
        '<?xml version="1.0" standalone="yes"?><a/>',
        "plain",
    ],
    "float4": ["0", "-0", "NaN", "Infinity", "-Infinity", "1.1754944e-38", "0.1"],
    "float8": ["0", "-0", "NaN", "Infinity", "-Infinity", "5e-324", "0.1", "1e22"],
    "numeric": ["0", "-0", "NaN", "Infinity", "-Infinity", "1." + "0" * 300, "1e1000", "0.10"],
    "money": ["-1234.50", "0"],
    "date": ["4713-01-01 BC", "infinity", "-infinity", "5874897-12-31"],
    "time": ["00:00", "24:00:00", "23:59:59.999999"],
    "timetz": ["00:00:00+15:59:59", "24:00:00-15:59"],
    "timestamp": ["4713-01-01 BC", "infinity", "294276-12-31 23:59:59.999999", "2000-01-01"],
    "timestamptz": ["4713-01-02 BC", "-infinity", "2024-03-31 02:30 Europe/Berlin"],
    "interval": ["1 year 2 mons -3 days 04:05:06.7", "-1 s", "0"],
    "point": ["(1,-0.1)"],
    "lseg": ["[(1,2),(3,4)]"],
    "line": ["{1,2,3}"],
    "box": ["(3,4),(1,2)"],
    "path": ["[(1,2),(3,4)]", "((1,2),(3,4))"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "circle": ["<(1,2),3>"],
    "inet": ["10.0.0.1", "10.0.0.1/8", "::1"],
    "cidr": ["10.0.0.0/8", "10.0.0.1/32", "::/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit": ["1", "0"],
    "varbit": ["", "101"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "pg_lsn": ["16/B374D848"],
    "pg_snapshot": ["10:20:10,14,15"],
    "txid_snapshot": ["10:20:10,14,15"],
    "tsvector": ["'a':1A,2 'b''c':3"],
    "tsquery": ["'a' & !'b':*A | 'c' <-> 'd'"],
    "refcursor": ["a cursor"],
    "aclitem": ["postgres=arw/postgres"],
    "regproc": ["now", "-"],
    "regprocedure": ["now()", "lower(text)"],
    "regoper": ["||/"],
    "regoperator": ["+(integer,integer)"],
    "regclass": ["pg_class", "0"],
    "regtype": ["integer", "timestamp with time zone"],
    "regcollation": ['"C"'],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regnamespace": ["pg_catalog"],
    "regrole": ["postgres"],
    "regdatabase": ["postgres"],
    "oid8": ["18446744073709551615"],
    "int4range": ["empty", "[1,5)", "(,)"],
    "int8range": ["[1,5)", "(,5)"],
    "numrange": ["[1.10,2.0]", "(NaN,)"],
    "daterange": ["[2024-01-01,infinity)"],
    "tsrange": ['["2024-01-01 00:00:00","2024-01-02 00:00:00")'],
    "tstzrange": ["[2024-01-01,2024-01-02)"],
    "int4multirange": ["{}", "{[1,5),[7,9)}"],
    "int8multirange": ["{[1,5)}"],
    "nummultirange": ["{[1.10,2.0]}"],
    "datemultirange": ["{[2024-01-01,infinity)}"],
    "tsmultirange": ["{[2024-01-01,2024-01-02)}"],
    "tstzmultirange": ["{[2024-01-01,2024-01-02)}"],
}
"""Input texts by type."""

MADE_BY_THE_SERVER = {
    "pg_node_tree": "(select adbin from pg_attrdef limit 1)",
    "pg_ndistinct": "(select stxdndistinct from pg_statistic_ext_data limit 1)",
    "pg_dependencies": "(select stxddependencies from pg_statistic_ext_data limit 1)",
    "pg_mcv_list": "(select stxdmcv from pg_statistic_ext_data limit 1)",
}
"""Types that take no input: where a value of them is found."""

NEVER_IN_A_TABLE = {"gtsvector", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}
"""Types that only indexes hold."""

SESSION_SETTINGS = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kolkata",
    "extra_float_digits": "-10",
    "bytea_output": "escape",
    "lc_monetary": "C",
    "xmlbinary": "hex",
    "quote_all_identifiers": "on",
}


def copied(dsn: str, name: str = "t") -> Rows:
    """What a copy of table `name` reads."""
    with closing(connect(dsn)) as catalog, exported(dsn) as snapshot:
        table = next(t for t in published(catalog, "pub") if t.name == name)
        schema = describe(catalog, 1, table.relation_id, table.columns)
        planned = scan.plan(catalog, table, schema, snapshot, ranges=1)
        work = scan._Work(dsn, "", planned)
        return [
            row for t in planned.tasks for part in scan._changes(work, t) for row in after(part)
        ]


def streamed(dsn: str, name: str = "t") -> Rows:
    """What the stream sent of every row inserted into table `name` so far."""
    with closing(connect(dsn)) as session:
        table = next(t for t in published(session, "pub") if t.name == name)
        schema = describe(session, 1, table.relation_id, table.columns)
        messages = session.execute(
            "select data from pg_catalog.pg_logical_slot_peek_binary_changes("
            "  (select slot_name from pg_catalog.pg_replication_slots"
            "   where database = current_database() and not temporary), null, null,"
            "  'proto_version', '1', 'publication_names', 'pub')"
        ).fetchall()
    kept = [m for (m,) in messages if m[:1] in b"BC" or oid(m) == table.relation_id]
    block = join(kept, header=0)
    return after(decode(block, {table.relation_id: [(0, schema)]}, epoch=1).table)


def oid(message: bytes) -> int:
    return int.from_bytes(message[1:5], "big")


def after(changes: Any) -> Rows:
    return [dict(image) for image in changes.column("after").to_pylist()]


@pytest.fixture
def load(dsn: str) -> Callable[..., None]:
    """Run statements on a fresh database whose tables are published and streamed from the start."""
    name = conninfo_to_dict(dsn)["dbname"]
    for setting, value in SESSION_SETTINGS.items():
        psql(dsn, f"alter database {name} set {setting} to '{value}'")

    def run(*statements: str) -> None:
        create = [s for s in statements if s.startswith(("create", "alter"))]
        psql(dsn, *create)
        with closing(connect(dsn)) as session:
            ensure(session, "pub", "all")
        psql(dsn, f"select pg_create_logical_replication_slot('text_{name}', 'pgoutput')")
        psql(dsn, *(s for s in statements if s not in create))

    return run


def assert_same(dsn: str, *, rows: int) -> Rows:
    by_copy, by_stream = copied(dsn), streamed(dsn)
    assert len(by_copy) == rows
    for at, (copy_row, stream_row) in enumerate(zip(by_copy, by_stream, strict=True)):
        different = {
            n: (copy_row.get(n), stream_row.get(n))
            for n in {*copy_row, *stream_row}
            if copy_row.get(n) != stream_row.get(n)
        }
        assert copy_row.keys() == stream_row.keys() and not different, f"row {at}: {different}"
    return by_copy


def builtin_types(dsn: str) -> list[str]:
    """Every type of pg_catalog that a column may have, but arrays."""
    rows = psql(
        dsn,
        "select typname from pg_type where typnamespace = 'pg_catalog'::regnamespace"
        " and typtype in ('b', 'r', 'm') and typsubscript <> 'array_subscript_handler'::regproc",
    )
    return sorted({name for (name,) in rows} - NEVER_IN_A_TABLE)


def array_type(dsn: str, name: str) -> str | None:
    ((text,),) = psql(
        dsn,
        "select (select a.typname from pg_type a where a.oid = t.typarray) from pg_type t"
        f" where t.typname = '{name}' and typnamespace = 'pg_catalog'::regnamespace",
    )
    return text


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def test_every_builtin_type_and_its_array_read_the_same_by_copy_and_stream(
    dsn: str, load: Callable[..., None]
) -> None:
    types = builtin_types(dsn)
    assert set(types) <= SAMPLES.keys() | MADE_BY_THE_SERVER.keys(), "a type has no sample"
    columns = [f'"{name}" pg_catalog."{name}"' for name in types]
    values = [
        [f'{quoted(text)}::pg_catalog."{name}"' for text in SAMPLES[name]]
        if name in SAMPLES
        else [MADE_BY_THE_SERVER[name]]
        for name in types
    ]
    for name, samples in list(zip(types, values, strict=True)):
        array = array_type(dsn, name)
        if name in SAMPLES and array is not None:
            columns.append(f'"{name}[]" pg_catalog."{array}"')
            nested = f'array[{", ".join([*samples, "null"])}]::pg_catalog."{array}"'
            empty, deep = f"'{{}}'::pg_catalog.\"{array}\"", f"array[{nested}]"
            values.append([nested, empty, deep])
    inserts = [
        "insert into t values (" + ", ".join(v[at] if at < len(v) else "null" for v in values) + ")"
        for at in range(max(map(len, values)))
    ]
    load(
        f"create table t ({', '.join(columns)})",
        "create table u (a int default 7, b int)",
        "create statistics u_stats (ndistinct, dependencies, mcv) on a, b from u",
        "insert into u select i % 10, i % 10 from generate_series(1, 1000) i",
        "analyze u",
        *inserts,
        "insert into t default values",
    )
    rows = assert_same(dsn, rows=len(inserts) + 1)
    assert rows[0]["bool"] == "t"
    assert rows[0]["date"] == "4713-01-01 BC"
    assert rows[1]["bpchar"] == "a  "
    assert rows[1]["xml"] == '<a b="c"/>'
    assert rows[1]["cidr"] == "10.0.0.1/32"
    assert rows[0]["inet"] == "10.0.0.1"
    assert set(rows[-1].values()) == {None}


TYPES_OF_USERS = [
    "create extension hstore",
    "create extension citext",
    "create extension ltree",
    'create schema "my types"',
    "create type mood as enum ('sad', 'it''s \"ok\"')",
    'create type "my types"."Pair" as (a int, b bool, c char(3), d text)',
    "create domain d_bool as bool",
    "create domain d_d_bool as d_bool check (value is not null or true)",
    "create domain d_char as char(5)",
    'create domain d_pair as "my types"."Pair"',
    "create domain d_mood as mood",
    "create domain d_bools as bool[]",
    "create type floats as range (subtype = float8, multirange_type_name = many_floats)",
    "create type shout as enum ('a', 'b')",
    "create function shouted(shout) returns text language sql as $$ select 'WRONG' $$",
    "create cast (shout as text) with function shouted(shout) as assignment",
    "create domain d_shout as shout",
    "create type nulls as (a int, b int)",
    "create function shouted(nulls) returns text language sql as $$ select 'WRONG' $$",
    "create cast (nulls as text) with function shouted(nulls) as assignment",
    "create domain d_nulls as nulls",
    "create function shouted(int[]) returns text language sql as $$ select 'WRONG' $$",
    "create cast (int[] as text) with function shouted(int[]) as assignment",
]

VALUES_OF_USERS = [
    ("hstore", '\'"a b"=>NULL, c=>"\\""\''),
    ("citext", "'MiXed'"),
    ("citext[]", "array['MiXed', null]::citext[]"),
    ("ltree", "'Top.Science'"),
    ("mood", "'it''s \"ok\"'"),
    ("mood[]", "array['it''s \"ok\"', null]::mood[]"),
    ('"my types"."Pair"', "row(1, true, 'a', 'x, \"y\"')"),
    ('"my types"."Pair"', "row(null, null, null, null)"),
    ('"my types"."Pair"[]', 'array[row(1, false, \'a\', null)]::"my types"."Pair"[]'),
    ("d_bool", "true"),
    ("d_d_bool", "false"),
    ("d_bool[]", "array[true, null]::d_bool[]"),
    ("d_char", "'a'"),
    ("d_pair", "row(1, true, 'a', null)"),
    ("d_mood", "'sad'"),
    ("d_bools", "array[true]"),
    ("floats", "'[0.1,0.30000000000000004)'"),
    ("many_floats", "'{[0.1,0.2)}'"),
    ("shout", "'a'"),
    ("shout[]", "array['a']::shout[]"),
    ("d_shout", "'b'"),
    ("nulls", "row(null, null)"),
    ("d_nulls", "row(null, null)"),
    ("nulls[]", "array[row(1, null)]::nulls[]"),
    ("int[]", "array[1, null]"),
    ("int[]", "'[0:1]={5,6}'"),
    ("text[]", "array['', 'NULL', null, '{\"}', 'a\\b']"),
    ("bool[]", "array[[true], [false]]"),
    ("char(5)", "'a'"),
    ("varchar(3)", "'a '"),
    ("numeric(12,4)", "1.5"),
    ("bit(3)", "B'101'"),
    ("timestamp(0)", "'2024-01-01 00:00:00.6'"),
    ("interval day to second(2)", "'1 day 2.345 s'"),
    ("pg_class", "(select c from pg_class c where oid = 1259)"),
]


def test_types_of_users_and_extensions_read_the_same_by_copy_and_stream(
    dsn: str, load: Callable[..., None]
) -> None:
    columns = [f"c{at} {name}" for at, (name, _) in enumerate(VALUES_OF_USERS)]
    load(
        *TYPES_OF_USERS,
        f"create table t ({', '.join(columns)})",
        f"insert into t values ({', '.join(value for _, value in VALUES_OF_USERS)})",
        "insert into t default values",
    )
    values, nulls = assert_same(dsn, rows=2)
    assert "WRONG" not in values.values()
    assert None not in values.values()
    assert set(nulls.values()) == {None}


def test_large_values_read_the_same_by_copy_and_stream(dsn: str, load: Callable[..., None]) -> None:
    load(
        "create table t (id int, doc text, raw bytea)",
        "alter table t alter doc set storage external",
        "insert into t values (1, repeat('\N{SNOWMAN}x', 5000000), repeat('a', 2000000)::bytea)",
        "insert into t values (2, '', '')",
    )
    first, _ = assert_same(dsn, rows=2)
    assert len(first["doc"] or "") == 10_000_000


def test_generated_columns_are_copied_where_they_are_streamed(
    dsn: str, load: Callable[..., None]
) -> None:
    load(
        "create table t (a int, b int generated always as (a + 1) stored, c int)",
        "insert into t (a, c) values (1, 2)",
    )
    (row,) = assert_same(dsn, rows=1)
    assert row.items() >= {("a", "1"), ("c", "2")}


def test_a_dropped_column_is_left_out_and_an_added_one_shows_its_default(
    dsn: str, load: Callable[..., None]
) -> None:
    load("create table t (a int, gone text, c int)", "insert into t values (1, 'x', 2)")
    psql(dsn, "alter table t drop gone", "alter table t add later int default 7")
    assert copied(dsn) == [{"a": "1", "c": "2", "later": "7"}]


def test_a_table_without_columns_has_its_rows(dsn: str, load: Callable[..., None]) -> None:
    load("create table t ()", "insert into t default values", "insert into t default values")
    assert assert_same(dsn, rows=2) == [{}, {}]
