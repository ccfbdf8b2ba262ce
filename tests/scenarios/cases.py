"""
What other systems of this kind lost or spoilt when they were measured, as statements.

Each case has tables that are filled before `setup` (their rows are copied), statements that run
while the stream does, and more of them once every table that needed a copy has it. Every statement
is sent as one string in a session of its case; each is its own transaction unless it says `begin`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


@dataclass(frozen=True, slots=True)
class Case:
    """`tables` are those that must equal the source when all is done."""

    name: str
    tables: tuple[str, ...]
    copied: tuple[str, ...] = ()
    streamed: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    born: tuple[str, ...] = ()
    """Of the tables, those that are made while the stream runs."""
    copy_decides: bool = False
    """Data changed without rows (an attached partition): the stream alone cannot give it."""


# --- values -----------------------------------------------------------------------------------


class Value(NamedTuple):
    """A value of a type, as an expression of its column."""

    name: str
    type: str
    expression: str


_EVERY_BYTE: Final = "'\\x" + bytes(range(256)).hex() + "'"
_CONTROL: Final = "||".join(f"chr({code})" for code in (*range(1, 32), 127, 133, 0x2028))

TYPES: Final = (
    "create type mood as enum ('sad', 'so, so', 'Ünïcode \"quoted\"')",
    "create domain positive as numeric(30, 4) check (value > 0)",
    "create domain feeling as mood",
    "create type pair as (a int, b text, c boolean)",
    "create type span as range (subtype = float8)",
)

VALUES: Final = (
    Value("bool_true", "boolean", "true"),
    Value("bool_false", "boolean", "false"),
    Value("int2_lowest", "int2", "'-32768'"),
    Value("int4_lowest", "int4", "'-2147483648'"),
    Value("int8_beyond_float", "int8", "9007199254740993"),
    Value("int8_lowest", "int8", "'-9223372036854775808'"),
    Value("float4_shortest", "float4", "0.1"),
    Value("float8_shortest", "float8", "'0.30000000000000004'"),
    Value("float8_smallest", "float8", "'4.9406564584124654e-324'"),
    Value("float8_minus_zero", "float8", "'-0'"),
    Value("float4_nan", "float4", "'NaN'"),
    Value("float4_infinity", "float4", "'Infinity'"),
    Value("float8_nan", "float8", "'NaN'"),
    Value("float8_infinity", "float8", "'Infinity'"),
    Value("float8_minus_infinity", "float8", "'-Infinity'"),
    Value("numeric_nan", "numeric", "'NaN'"),
    Value("numeric_infinity", "numeric", "'Infinity'"),
    Value("numeric_minus_infinity", "numeric", "'-Infinity'"),
    Value(
        "numeric_29_and_21_digits",
        "numeric",
        "12345678901234567890123456789.123456789012345678901",
    ),
    Value("numeric_38_10", "numeric(38, 10)", "12345678901234567890.1234567891"),
    Value("numeric_4000_digits", "numeric", "repeat('7', 4000)::numeric"),
    Value("numeric_scale_kept", "numeric", "1.500"),
    Value("numeric_negative_scale", "numeric(5, -3)", "1234567"),
    Value("numeric_array_nan", "numeric[]", "'{1.10,NaN,NULL,-Infinity}'"),
    Value("money", "money", "'-1234567.89'"),
    Value("text", "text", "'plain'"),
    Value("text_empty", "text", "''"),
    Value("text_says_null", "text", "'NULL'"),
    Value("text_backslash_n", "text", "'\\N'"),
    Value("text_quotes", "text", "'\"a'' \\\\ {b},(c)'"),
    Value("text_control_characters", "text", _CONTROL),
    Value("text_4_bytes", "text", "'𝄞 😀 👩‍👩‍👧 中文 e' || chr(769) || chr(1114109)"),
    Value(
        "text_256_kb",
        "text",
        "(select string_agg(md5(i::text), '') from generate_series(1, 8192) i)",
    ),
    Value("varchar", "varchar(10)", "'trailing '"),
    Value("char_padded", "char(8)", "'ab'"),
    Value("char_empty", "char(3)", "''"),
    Value("one_byte_char", '"char"', "'x'"),
    Value("name_type", "name", "'a name'"),
    Value("bytea_every_byte", "bytea", _EVERY_BYTE),
    Value("bytea_empty", "bytea", "''"),
    Value("date_ordinary", "date", "'2024-02-29'"),
    Value("date_before_christ", "date", "'4713-01-01 BC'"),
    Value("date_infinity", "date", "'infinity'"),
    Value("date_minus_infinity", "date", "'-infinity'"),
    Value("time_24", "time", "'24:00:00'"),
    Value("time_microseconds", "time", "'12:34:56.000001'"),
    Value("timetz", "timetz", "'12:34:56.5+05:30'"),
    Value("timetz_seconds", "timetz", "'00:00:00-15:59:59'"),
    Value("timestamp_ordinary", "timestamp", "'2024-06-30 23:59:59.999999'"),
    Value("timestamp_last", "timestamp", "'294276-12-31 23:59:59.999999'"),
    Value("timestamp_infinity", "timestamp", "'infinity'"),
    Value("timestamp_minus_infinity", "timestamp", "'-infinity'"),
    Value("timestamptz_ordinary", "timestamptz", "'2024-03-31 02:30:00+02'"),
    Value("timestamptz_infinity", "timestamptz", "'infinity'"),
    Value("timestamptz_minus_infinity", "timestamptz", "'-infinity'"),
    Value("interval_mixed", "interval", "'1 year 2 mons -3 days 04:05:06.789'"),
    Value("interval_months", "interval", "'13 months'"),
    Value("interval_days_hours", "interval", "'1 day 25:00:00'"),
    Value("uuid", "uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
    Value("json_as_written", "json", '\'{"b": 1,  "a" : 1.0, "a": 2}\''),
    Value(
        "jsonb_wide_number", "jsonb", "'{\"n\": 123456789012345678901234567890.000000000000001}'"
    ),
    Value("jsonb_400_digits", "jsonb", "('[' || repeat('9', 400) || ']')::jsonb"),
    Value("jsonb_null_literal", "jsonb", "'null'"),
    Value("jsonb_empty", "jsonb", "'{}'"),
    Value("jsonb_nested", "jsonb", '\'{"a": [1, {"b": null}, "\\u00fc\\ud834\\udd1e"]}\''),
    Value("inet_host", "inet", "'192.168.1.5'"),
    Value("inet_net", "inet", "'192.168.1.5/24'"),
    Value("inet_6", "inet", "'2001:db8::1'"),
    Value("cidr", "cidr", "'10.1.0.0/16'"),
    Value("macaddr", "macaddr", "'08:00:2b:01:02:03'"),
    Value("macaddr8", "macaddr8", "'08:00:2b:01:02:03:04:05'"),
    Value("bit_string", "bit(5)", "B'10110'"),
    Value("bit_varying", "bit varying(9)", "B'101'"),
    Value("bit_empty", "bit varying", "B''"),
    Value("point", "point", "'(1.5,-2)'"),
    Value("line", "line", "'{1,2,3}'"),
    Value("lseg", "lseg", "'[(0,0),(1,1)]'"),
    Value("box", "box", "'(2,2),(0,0)'"),
    Value("path_open", "path", "'[(0,0),(1,1)]'"),
    Value("polygon", "polygon", "'((0,0),(1,1),(1,0))'"),
    Value("circle", "circle", "'<(0,0),2>'"),
    Value("tsvector", "tsvector", "$$'a b':1A 'it''s':2$$"),
    Value("tsquery", "tsquery", "'fat & !rat'"),
    Value("int4range", "int4range", "'[1,5]'"),
    Value("int8range_empty", "int8range", "'empty'"),
    Value("numrange_open", "numrange", "'(1.10,)'"),
    Value("daterange_infinity", "daterange", "'[2024-01-01,infinity)'"),
    Value("tsrange", "tsrange", "'[2024-01-01 00:00,2024-01-02 12:00)'"),
    Value("tstzrange", "tstzrange", "'[2024-01-01 00:00+02,)'"),
    Value("own_range", "span", "'[1.5,NaN)'"),
    Value("multirange", "int4multirange", "'{[1,3), [5,9)}'"),
    Value("multirange_empty", "nummultirange", "'{}'"),
    Value("enum", "mood", "'so, so'"),
    Value("enum_quotes", "mood", "'Ünïcode \"quoted\"'"),
    Value("domain", "positive", "12345678901234567890.5"),
    Value("domain_enum", "feeling", "'sad'"),
    Value("composite", "pair", "row(1, 'a \"b\", (c)', false)"),
    Value("composite_nulls", "pair", "row(null, '', null)"),
    Value("oid", "oid", "4294967295"),
    Value("pg_lsn", "pg_lsn", "'16/B374D848'"),
    Value("txid_snapshot", "txid_snapshot", "'10:20:10,14,15'"),
    Value("array_null_element", "int[]", "'{1,NULL,3}'"),
    Value("array_empty", "int[]", "'{}'"),
    Value("array_lower_bound", "int[]", "'[0:1]={5,6}'"),
    Value("array_two_dimensions", "text[]", "array[['a', 'b,\"c'], [null, '']]"),
    Value("array_two_bounds", "int[]", "'[-1:0][2:3]={{1,2},{3,4}}'"),
    Value("array_text", "text[]", "array['NULL', null, '', 'a b', '{}', E'\\\\']"),
    Value("array_bool", "boolean[]", "'{t,f,NULL}'"),
    Value("array_float", "float8[]", "'{NaN,Infinity,-0,0.1}'"),
    Value("array_enum", "mood[]", "array['so, so', null]::mood[]"),
    Value("array_box", "box[]", "'{(2,2),(0,0);(1,1),(0,0)}'"),
    Value("array_composite", "pair[]", "array[row(1, 'x', true), null]::pair[]"),
    Value("array_date", "date[]", "'{infinity,2024-01-01,NULL}'"),
    Value("array_bytea", "bytea[]", "array['\\x00ff'::bytea, '']"),
)

_NAMES: Final = ", ".join(f'"{value.name}"' for value in VALUES)
_EXPRESSIONS: Final = ", ".join(value.expression for value in VALUES)
_SET: Final = ", ".join(f'"{value.name}" = {value.expression}' for value in VALUES)

COPIED_ID, COPIED_NULLS_ID = 1, 2
STREAMED_ID, STREAMED_NULLS_ID = 1_001, 1_002
UPDATED_ID = 3
"""Copied with NULLs, then updated to every value."""


def _insert_values(id_: int) -> str:
    return f"insert into everything (id, {_NAMES}) values ({id_}, {_EXPRESSIONS})"


EVERYTHING: Final = Case(
    "values",
    ("everything",),
    copied=(
        *TYPES,
        "create table everything (id int primary key, "
        + ", ".join(f'"{value.name}" {value.type}' for value in VALUES)
        + ")",
        _insert_values(COPIED_ID),
        f"insert into everything (id) values ({COPIED_NULLS_ID}), ({UPDATED_ID})",
    ),
    streamed=(
        _insert_values(STREAMED_ID),
        f"insert into everything (id) values ({STREAMED_NULLS_ID})",
        f"update everything set {_SET} where id = {UPDATED_ID}",
    ),
)


# --- rows and keys ----------------------------------------------------------------------------

DOC: Final = "(select string_agg(md5(i || ' ' || n), '') from generate_series(1, 3072) n)"
"""Of row i: 96 kB that do not compress, so out of line."""

MIXED: Final = '"Mixed Case"."Order ""Lines"" 😀"'

LARGE_ROWS: Final = 20_000

RESTARTS: Final = 6

ROWS: Final = (
    Case(
        "one_row_per_run",
        ("restarted",),
        copied=(
            (
                "create table restarted (id int primary key, a text, b text, c text, d text,"
                " e text, f text, g text, h text, i text)"
            ),
            "insert into restarted (id, a) values (0, 'copied')",
        ),
    ),
    Case(
        "toast",
        ("toasted", "toasted_full"),
        copied=(
            "create table toasted (id int primary key, n int, doc text)",
            "alter table toasted alter doc set storage external",
            "create table toasted_full (like toasted including all)",
            "alter table toasted_full replica identity full",
            *(
                f"insert into {table} select i, 0, {DOC} from generate_series(1, 2) i"
                for table in ("toasted", "toasted_full")
            ),
        ),
        streamed=tuple(
            statement
            for table in ("toasted", "toasted_full")
            for statement in (
                f"insert into {table} select i, 0, {DOC} from generate_series(3, 3) i",
                f"update {table} set n = n + 1",
                f"update {table} set n = n + 1, id = id + 10 where id in (2, 3)",
            )
        ),
    ),
    Case(
        "key_change",
        ("rekeyed",),
        copied=(
            "create table rekeyed (id int primary key, v text)",
            "insert into rekeyed values (1, 'stays'), (2, 'moves'), (3, 'swaps a'), (4, 'swaps b')",
        ),
        streamed=(
            "insert into rekeyed values (101, 'stays'), (102, 'moves')",
            "update rekeyed set id = id + 1000 where v = 'moves'",
            (
                "begin; update rekeyed set id = -3 where id = 3;"
                " update rekeyed set id = 3 where id = 4;"
                " update rekeyed set id = 4 where id = -3; commit"
            ),
        ),
    ),
    Case(
        "composite_key_change",
        ("composite",),
        copied=(
            "create table composite (a int, b text, v text, primary key (b, a))",
            "insert into composite values (1, 'x', 'both'), (1, 'y', 'one'), (2, 'x', 'stays')",
        ),
        streamed=(
            "insert into composite values (11, 'x', 'both'), (11, 'y', 'one'), (12, 'x', 'stays')",
            "update composite set a = a + 100, b = b || b where v = 'both'",
            "update composite set b = 'z' where v = 'one'",
        ),
    ),
    Case(
        "date_in_key",
        ("dated",),
        copied=(
            "create table dated (day date, id int, v text, primary key (day, id))",
            (
                "insert into dated values ('2024-02-29', 1, 'a'), ('infinity', 1, 'b'),"
                " ('0044-03-15 BC', 1, 'c')"
            ),
        ),
        streamed=(
            (
                "insert into dated values ('2024-02-29', 2, 'a'), ('infinity', 2, 'b'),"
                " ('0044-03-15 BC', 2, 'c')"
            ),
            "update dated set v = v || v where day = 'infinity'",
            "update dated set day = day + 1 where day = '2024-02-29'",
            "delete from dated where day < '2000-01-01'",
        ),
    ),
    Case(
        "truncate",
        ("emptied",),
        copied=(
            "create table emptied (id int primary key)",
            "insert into emptied select generate_series(1, 5)",
        ),
        streamed=(
            "insert into emptied select generate_series(6, 9)",
            "truncate emptied",
            "insert into emptied values (3)",
            (
                "begin; insert into emptied values (50); truncate emptied;"
                " insert into emptied values (51); commit"
            ),
        ),
    ),
    Case(
        "truncate_cascade",
        ("parent", "child"),
        copied=(
            "create table parent (id int primary key)",
            "create table child (id int primary key, of int references parent)",
            "insert into parent select generate_series(1, 5)",
            "insert into child select i, i from generate_series(1, 5) i",
        ),
        streamed=(
            "insert into parent values (6)",
            "insert into child values (6, 6)",
            "truncate parent cascade",
            "insert into parent values (7)",
            "insert into child values (8, 7)",
        ),
    ),
    Case(
        "keyless",
        ("keyless",),
        copied=(
            "create table keyless (a int, b text)",
            "alter table keyless replica identity full",
            "insert into keyless values (1, 'x'), (1, 'x'), (2, null), (2, null), (null, null)",
        ),
        streamed=(
            "insert into keyless values (1, 'x'), (2, null), (null, null), (null, null), (3, '')",
        ),
    ),
    Case(
        "duplicates",
        ("duplicates",),
        copied=(
            "create table duplicates (a int, b text)",
            "alter table duplicates replica identity full",
            "insert into duplicates select 1, 'copied' from generate_series(1, 3)",
        ),
        streamed=(
            "insert into duplicates select 2, 'streamed' from generate_series(1, 3)",
            "delete from duplicates where ctid in (select min(ctid) from duplicates group by a)",
            (
                "update duplicates set b = 'one' where ctid in"
                " (select min(ctid) from duplicates group by a)"
            ),
        ),
    ),
    Case(
        "two_schemas",
        ("one.same", "two.same"),
        copied=(
            "create schema one",
            "create schema two",
            "create table one.same (id int primary key, v text)",
            "create table two.same (v int, id text primary key)",
            "insert into one.same values (1, 'one')",
            "insert into two.same values (1, 'two'), (2, '1')",
        ),
        streamed=(
            "insert into one.same values (2, 'one')",
            "insert into two.same values (3, 'three')",
            "update two.same set v = 10 where id = '1'",
            "delete from one.same where id = 1",
        ),
    ),
    Case(
        "rollbacks",
        ("undone",),
        copied=(
            "create table undone (id int primary key, v text)",
            "insert into undone values (1, 'copied'), (2, 'copied')",
        ),
        streamed=(
            "begin; insert into undone values (900, 'never'); delete from undone; rollback",
            (
                "begin; insert into undone values (10, 'before'); savepoint s;"
                " insert into undone values (901, 'never'); update undone set v = 'never';"
                " rollback to s; insert into undone values (11, 'after'); commit"
            ),
            (
                "begin; insert into undone values (20, 'a');"
                " update undone set v = 'b' where id = 20;"
                " delete from undone where id = 20; insert into undone values (20, 'c'); commit"
            ),
            (
                "begin; update undone set v = 'x' where id = 1; delete from undone where id = 1;"
                " insert into undone values (1, 'again'); delete from undone where id = 1;"
                " insert into undone values (1, 'at last'); commit"
            ),
            # Past logical_decoding_work_mem: sent before its part is known to be undone.
            (
                "begin; insert into undone select i, 'many' from generate_series(1001, 1900) i;"
                " savepoint s;"
                " insert into undone select i, 'never' from generate_series(5001, 5900) i;"
                " rollback to s; insert into undone values (2000, 'after'); commit"
            ),
        ),
    ),
    Case(
        "mixed_case",
        (MIXED,),
        copied=(
            'create schema "Mixed Case"',
            (
                f'create table {MIXED} ("Line Id" int primary key, "select" text, "Größe" text,'
                ' "größe" text, "a.b" text, "%s" text)'
            ),
            f"insert into {MIXED} values (1, 'a', 'b', 'c', 'd', 'e')",
        ),
        streamed=(
            f"insert into {MIXED} values (2, 'a', 'b', 'c', 'd', 'e')",
            f'update {MIXED} set "größe" = \'x\', "Line Id" = "Line Id" + 10',
        ),
    ),
    Case(
        "identity_and_generated",
        ("counted",),
        copied=(
            (
                "create table counted (id int generated always as identity primary key, a int,"
                " double int generated always as (a * 2) stored, z text)"
            ),
            "insert into counted (a, z) values (1, 'copied'), (2, 'copied')",
        ),
        streamed=(
            "begin; insert into counted (a, z) values (0, 'never'); rollback",
            "insert into counted (a, z) values (3, 'streamed'), (4, 'streamed')",
            "update counted set a = a + 10 where z = 'copied'",
        ),
    ),
    Case(
        "partitions",
        ("parted",),
        copied=(
            (
                "create table parted (day int, id int, v text, primary key (day, id))"
                " partition by list (day)"
            ),
            "create table parted_1 partition of parted for values in (1)",
            "create table parted_2 partition of parted for values in (2)",
            "insert into parted select 1 + i % 2, i, 'copied' from generate_series(1, 10) i",
        ),
        streamed=(
            "insert into parted select 1 + i % 2, i, 'streamed' from generate_series(11, 20) i",
            "update parted set day = 3 - day where id % 5 = 0",
            "create table parted_3 partition of parted for values in (3)",
            "insert into parted values (3, 100, 'new partition')",
            "update parted set day = 3 where id in (1, 11)",
        ),
        later=("insert into parted values (3, 101, 'later')", "delete from parted where id = 100"),
    ),
    Case(
        "attached_partition",
        ("joined",),
        copied=(
            (
                "create table joined (day int, id int, v text, primary key (day, id))"
                " partition by list (day)"
            ),
            "create table joined_1 partition of joined for values in (1)",
            "insert into joined values (1, 1, 'copied')",
        ),
        streamed=(
            "insert into joined values (1, 2, 'streamed')",
            # Another order of columns than the parent's.
            (
                "create table joined_2 (v text, id int not null, day int not null,"
                " primary key (day, id))"
            ),
            "insert into joined_2 values ('before it joined', 3, 2)",
            "alter table joined attach partition joined_2 for values in (2)",
            "insert into joined values (2, 4, 'after it joined')",
        ),
        later=("update joined set v = v || '!'",),
        copy_decides=True,
    ),
    Case(
        "large_transaction",
        ("large",),
        copied=(
            "create table large (id int primary key, v text)",
            "insert into large select -i, md5(i::text) from generate_series(1, 2000) i",
        ),
        streamed=(
            f"insert into large select i, md5(i::text) from generate_series(1, {LARGE_ROWS}) i",
        ),
    ),
)


# --- definitions ------------------------------------------------------------------------------

DEFINITIONS: Final = (
    Case(
        "columns_come_and_go",
        ("altered",),
        copied=(
            "create table altered (id int primary key, a text, b text)",
            "insert into altered values (1, 'a', 'b'), (2, 'a', 'b')",
        ),
        streamed=(
            "insert into altered values (3, 'a', 'b')",
            "alter table altered add column c int default 7",
            "insert into altered values (4, 'a', 'b', 8)",
            "alter table altered rename column b to renamed",
            "update altered set a = 'A' where id in (1, 3)",
            "alter table altered drop column a",
            "insert into altered values (5, 'b', null)",
            "update altered set c = 9 where id in (2, 3)",
        ),
    ),
    Case(
        "wider_type",
        ("widened",),
        copied=(
            "create table widened (id int primary key, n int)",
            "insert into widened values (1, 1), (2, 2147483647)",
        ),
        streamed=(
            "insert into widened values (3, 3)",
            "alter table widened alter column n type bigint",
            "insert into widened values (4, 9007199254740993)",
            "update widened set n = -n where id in (2, 3)",
        ),
        later=("insert into widened values (5, -9223372036854775808)",),
    ),
    Case(
        "other_type",
        ("retyped",),
        copied=(
            "create table retyped (id int primary key, n numeric(6, 2), at timestamp)",
            "insert into retyped values (1, 1.5, '2024-01-01 12:00')",
        ),
        streamed=(
            "insert into retyped values (2, 2.5, '2024-01-02 12:00')",
            "alter table retyped alter n type text using 'n = ' || n, alter at type timestamptz",
            "insert into retyped values (3, 'three', '2024-01-03 12:00+00')",
        ),
        later=("update retyped set n = n || '!' where id = 2",),
        copy_decides=True,
    ),
    Case(
        "two_columns_at_once",
        ("grown",),
        copied=(
            "create table grown (id int primary key, a text)",
            "insert into grown values (1, 'copied')",
        ),
        streamed=(
            "insert into grown values (2, 'streamed')",
            "alter table grown add column e int, add column f text default 'f'",
            "insert into grown values (3, 'streamed', 3, null)",
        ),
    ),
    Case(
        "new_and_renamed_table",
        ("new_name", "born_later"),
        born=("born_later",),
        copied=(
            "create table old_name (id int primary key, v text)",
            "insert into old_name values (1, 'copied')",
        ),
        streamed=(
            "insert into old_name values (2, 'old name')",
            "alter table old_name rename to new_name",
            "insert into new_name values (3, 'new name')",
            "update new_name set v = v || '!' where id < 3",
            "create table born (id int primary key, v text)",
            "insert into born values (1, 'born')",
            "alter table born rename to born_later",
            "insert into born_later values (2, 'renamed')",
        ),
        later=("update born_later set v = v || '!'", "insert into new_name values (4, 'later')"),
    ),
    Case(
        "create_table_as",
        ("made_as",),
        born=("made_as",),
        streamed=(
            "create table made_as as select i as n, random() as r from generate_series(1, 20) i",
            "insert into made_as select 100 + i, 0.5 from generate_series(1, 5) i",
        ),
        later=("insert into made_as values (200, 'NaN')",),
    ),
    Case(
        "create_schema",
        ("founded.t",),
        born=("founded.t",),
        streamed=(
            (
                "create schema founded; create table founded.t (id int primary key, v text);"
                " insert into founded.t values (1, 'in one transaction')"
            ),
            "insert into founded.t values (2, 'streamed')",
        ),
        later=("insert into founded.t values (3, 'later')",),
    ),
    Case(
        "search_path",
        ("elsewhere.unqualified", "public.unqualified"),
        born=("elsewhere.unqualified",),
        copied=(
            "create schema elsewhere",
            "create table public.unqualified (id int primary key, v text)",
            "insert into public.unqualified values (1, 'public')",
        ),
        streamed=(
            "set search_path to elsewhere, public",
            "create table unqualified (v text, id int primary key)",
            "insert into unqualified values ('elsewhere', 1)",
            "insert into public.unqualified values (2, 'public')",
        ),
        later=("insert into elsewhere.unqualified values ('later', 2)",),
    ),
    Case(
        "statements_in_one_string",
        ("four", "four_new"),
        born=("four_new",),
        copied=(
            "create table four (id int primary key, a text)",
            "insert into four values (1, 'copied')",
        ),
        streamed=(
            (
                "insert into four values (2, 'before');"
                " alter table four add column b int default 7;"
                " insert into four values (3, 'after', 8);"
                " update four set a = 'changed' where id = 1"
            ),
            (
                "create table four_new (id int primary key, a text); insert into four_new values"
                " (1, 'before'); alter table four_new add column b int default 7;"
                " insert into four_new values (2, 'after', 8)"
            ),
        ),
        later=("insert into four_new values (3, 'later', 9)",),
    ),
    Case(
        "enum_value",
        ("moody",),
        copied=(
            "create type weather as enum ('sun', 'rain')",
            "create table moody (id int primary key, w weather)",
            "insert into moody values (1, 'sun')",
        ),
        streamed=(
            "insert into moody values (2, 'rain')",
            "alter type weather add value 'snow' before 'rain'",
            "insert into moody values (3, 'snow')",
            "update moody set w = 'snow' where id = 1",
        ),
    ),
)

CASES: Final = (EVERYTHING, *ROWS, *DEFINITIONS)
