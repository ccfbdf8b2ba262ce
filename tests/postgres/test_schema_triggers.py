"""DDL in the stream: what the event triggers report of each command, and what they leave alone."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import SourceConfig, parse
from pgstream_dagster.errors import LocksHeld
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.outbox.install import install as install_outbox
from pgstream_dagster.outbox.install import uninstall as uninstall_outbox
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema import ddl
from pgstream_dagster.schema.ddl import DdlEvent, DdlReport
from pgstream_dagster.source import catalog, prepare, publication, schema_triggers
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.preflight import Finding, Severity, preflight
from pgstream_dagster.source.query import current_lsn
from pgstream_dagster.source.schema_triggers import VERSION, Installed, install, remove, state
from pgstream_dagster.wire import pgoutput
from tests.support.plugins.cluster import psql
from tests.support.plugins.lake import SETTINGS
from tests.support.plugins.wait import until

pytestmark = pytest.mark.every_major

SLOT = "pipeline"
"""The reader that is registered; such a slot need not exist."""

_numbers = itertools.count(1)


def done(dsn: str, operation: Any, *values: Any) -> Any:
    with closing(connect(dsn)) as session:
        return operation(session, *values)


class Source:
    """A database with the event triggers, and a slot in which their reports are read."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.warnings: list[str] = []
        self.session = self.connect()
        self.slot = f"ddl_{next(_numbers)}_{self.value('select current_database()')}"
        self.value(f"select pg_create_logical_replication_slot('{self.slot}', 'pgoutput')::text")

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """An application's session; what it is warned of is kept."""
        conninfo = make_conninfo(self.dsn, client_encoding="UTF8")
        session = psycopg.connect(conninfo, autocommit=True)
        session.add_notice_handler(self._notice)
        return session

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in the application's session; the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            cursor = self.session.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
        return rows

    def value(self, statement: str) -> Any:
        [(value,)] = self.run(statement)
        return value

    def messages(self) -> list[bytes]:
        """What pgoutput sent since it was asked last."""
        rows = self.run(
            f"select data from pg_logical_slot_get_binary_changes('{self.slot}', null, null,"
            " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
        )
        return [bytes(data) for (data,) in rows]

    def reports(self, *statements: str) -> list[DdlReport]:
        """What these statements reported."""
        self.messages()
        self.run(*statements)
        parsed = [
            pgoutput.parse(data, streamed=False) for data in self.messages() if data[:1] == b"M"
        ]
        return [
            ddl.parse(message.content)
            for message in parsed
            if isinstance(message, pgoutput.LogicalMessage) and message.prefix == ddl.PREFIX
        ]

    def is_as_described(self, report: DdlReport) -> None:
        """The report says of a table what the catalog says now."""
        assert report.table is not None
        oid = report.table.relation_id
        names = "select attnames::text[] from pg_publication_tables where pubname = 'p' and"
        name = f"schemaname || '.' || tablename = {_quoted(_name(report))}"
        rows = self.run(f"{names} {name}")
        described = report.table.schema(1, "p")
        if not rows:
            assert described is None
            return
        columns = None if self.session.info.server_version < 180000 else rows[0][0]
        with connect(self.dsn) as session:
            assert described == catalog.describe(session, 1, oid, columns)
        if self.session.info.server_version >= 180000:
            assert described is not None
            assert [column.name for column in described.columns] == (rows[0][0] or [])

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warnings.append(notice.message_primary or "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(report: DdlReport) -> str:
    assert report.table is not None
    return f"{report.table.namespace}.{report.table.name}"


def facts(reports: list[DdlReport]) -> list[tuple[str, ...]]:
    """Event, tag and table of each report."""
    return [
        (report.event.value, report.tag, *([_name(report)] if report.table else []))
        for report in reports
    ]


@pytest.fixture(scope="module")
def triggered(module_dsn: str) -> str:
    """A database of the module with the event triggers, and all tables published."""
    with closing(connect(module_dsn)) as session:
        publication.ensure(session, "p", "all")
        assert install(session, SLOT) == Installed(VERSION)
    return module_dsn


@pytest.fixture
def source(triggered: str) -> Iterator[Source]:
    """That database, with an empty schema public and nothing else."""
    psql(
        triggered,
        "set pgstream.skip_log = on; drop schema if exists public, other, third cascade;"
        " create schema public; truncate pgstream.schema_log",
    )
    made = Source(triggered)
    with made.session:
        yield made
        assert made.warnings == []
    psql(triggered, f"select pg_drop_replication_slot('{made.slot}')")


T = "create table t (id int primary key, a int, b text)"
TREE = (
    "create table r (id int primary key, a int) partition by range (id)",
    "create table r1 partition of r for values from (0) to (10)",
)

FUNCTION = "create function f() returns void as 'alter table t add c int' language sql"
DESCRIBE, DROP = DdlEvent.DESCRIBE.value, DdlEvent.DROP.value
ALTERED = [(DESCRIBE, "ALTER TABLE", "public.t")]
ALTERED_ROOT = [(DESCRIBE, "ALTER TABLE", "public.r")]

COMMANDS: dict[str, tuple[tuple[str, ...], str, list[tuple[str, ...]]]] = {
    # name: what is there, the command, what is reported
    "create": ((), T, [(DESCRIBE, "CREATE TABLE", "public.t")]),
    "create_like": ((T,), "create table u (like t including all)", [
        (DESCRIBE, "CREATE TABLE", "public.u"),
    ]),
    "create_again": ((T,), "create table if not exists t (id int)", []),
    "without_columns": ((), "create table t ()", [(DESCRIBE, "CREATE TABLE", "public.t")]),
    "in_a_new_schema": ((), "create schema other create table t (id int) create view v as table t",
        [(DESCRIBE, "CREATE SCHEMA", "other.t")]),
    "ctas": ((), "create table t as select 1 as a, 'x'::text as b", [
        (DESCRIBE, "CREATE TABLE AS", "public.t"),
    ]),
    "select_into": ((), "select 1 as a into t", [(DESCRIBE, "SELECT INTO", "public.t")]),
    "drop": ((T,), "drop table t", [(DROP, "DROP TABLE", "public.t")]),
    "drop_two": ((T, "create table u ()"), "drop table u, t", [
        (DROP, "DROP TABLE", "public.t"), (DROP, "DROP TABLE", "public.u"),
    ]),
    "drop_schema": (("create schema other", "create table other.t (id serial primary key)"),
        "drop schema other cascade", [(DROP, "DROP SCHEMA", "other.t")]),
    "rename": ((T,), "alter table t rename to u", [(DESCRIBE, "ALTER TABLE", "public.u")]),
    "rename_as_an_index": ((T,), "alter index t rename to u", [
        (DESCRIBE, "ALTER INDEX", "public.u"),
    ]),
    "rename_schema": ((T, "create table u (x t, y int)", "create schema other",
        "create table other.w (z public.t)"), "alter schema public rename to third", [
        (DESCRIBE, "ALTER SCHEMA", "third.t"), (DESCRIBE, "ALTER SCHEMA", "third.u"),
        (DESCRIBE, "ALTER SCHEMA", "other.w"),
    ]),
    "set_schema": ((T, "create schema other"), "alter table t set schema other", [
        (DESCRIBE, "ALTER TABLE", "other.t"),
    ]),
    "row_type": ((T, "create table u (x t[])"), "alter table t rename to v", [
        (DESCRIBE, "ALTER TABLE", "public.v"), (DESCRIBE, "ALTER TABLE", "public.u"),
    ]),
    "add": ((T,), "alter table t add c numeric(12, 2)", ALTERED),
    "add_default": ((T, "insert into t values (1)"),
        "alter table t add c text not null default E'x,\\'\"{}\\\\'", ALTERED),
    "add_volatile": ((T, "insert into t values (1)"),
        "alter table t add c float8 default random()", ALTERED),
    "add_time": ((T, "insert into t values (1)", "set timezone = 'Asia/Tokyo'",
        "set datestyle = 'SQL, DMY'"),
        "alter table t add c timestamptz default '2024-02-01 12:00', add d interval default '1'",
        ALTERED),
    "add_identity": ((T,), "alter table t add c int generated always as identity", ALTERED),
    "add_generated": ((T,), "alter table t add c int generated always as (a + 1) stored", ALTERED),
    "add_serial": ((T,), "alter table t add c bigserial", ALTERED),
    "drop_column": ((T,), "alter table t drop column a", ALTERED),
    "rename_column": ((T,), "alter table t rename a to c", ALTERED),
    "retype": ((T,), "alter table t alter a type bigint", ALTERED),
    "several": ((T,), "alter table t add c int, drop a, alter b set not null, add d text", ALTERED),
    "default": ((T,), "alter table t alter a set default 7", ALTERED),
    "drop_default": ((T, "create sequence s", "alter table t alter a set default nextval('s')"),
        "drop sequence s cascade", [(DESCRIBE, "DROP SEQUENCE", "public.t")]),
    "unlogged": ((T,), "alter table t set unlogged", ALTERED),
    "comment": ((T,), "comment on table t is 'it''s'", [(DESCRIBE, "COMMENT", "public.t")]),
    "comment_column": ((T,), "comment on column t.a is 'x'", [(DESCRIBE, "COMMENT", "public.t")]),
    "comment_index": ((T,), "comment on index t_pkey is 'x'", []),
    "index": ((T,), "create unique index on t (a)", []),
    "view": ((T,), "create view v as select * from t", []),
    "temporary": ((), "create temp table t (id int)", []),
    "drop_temporary": (("create temp table t (id int)",), "drop table t", []),
    "drop_key": ((T,), "alter table t drop constraint t_pkey", ALTERED),
    "key_of_two": ((T, "alter table t drop constraint t_pkey"),
        "alter table t add primary key (b, id) include (a)", ALTERED),
    "deferrable_key": ((T, "alter table t drop constraint t_pkey"),
        "alter table t add primary key (id) deferrable", ALTERED),
    "full": ((T,), "alter table t replica identity full", ALTERED),
    "nothing": ((T,), "alter table t replica identity nothing", ALTERED),
    "by_index": (("create table t (id int not null, b text not null)",
        "create unique index i on t (b, id)"), "alter table t replica identity using index i",
        ALTERED),
    "drop_identity_index": (("create table t (id int not null)", "create unique index i on t (id)",
        "alter table t replica identity using index i"), "drop index i", [
        (DESCRIBE, "DROP INDEX", "public.t"),
    ]),
    "enum_add": (("create type m as enum ('a', 'c')", "create table t (m m)",
        "create table u (id int)"), "alter type m add value 'b' before 'c'", [
        (DESCRIBE, "ALTER TYPE", "public.t"),
    ]),
    "enum_rename": (("create type m as enum ('a')", "create domain d as m", "create table t (m d)"),
        "alter type m rename value 'a' to 'b'", [(DESCRIBE, "ALTER TYPE", "public.t")]),
    "enum_in_array": (("create type m as enum ('a')", "create table t (m m[][])"),
        "alter type m rename to n", [(DESCRIBE, "ALTER TYPE", "public.t")]),
    "domain": (("create domain d as int", "create domain e as d[]", "create table t (x e)"),
        "alter domain d rename to f", [(DESCRIBE, "ALTER DOMAIN", "public.t")]),
    "domain_schema": (("create schema other", "create domain d as int", "create table t (x d)"),
        "alter domain d set schema other", [(DESCRIBE, "ALTER DOMAIN", "public.t")]),
    "composite": (("create type c as (x int)", "create type d as (y c)", "create table t (z d[])"),
        "alter type c add attribute w text", [(DESCRIBE, "ALTER TYPE", "public.t")]),
    "range": (("create type m as enum ('a', 'b')",
        "create type spread as range (subtype = m, multirange_type_name = spreads)",
        "create table t (s spreads)"), "alter type m add value 'c'", [
        (DESCRIBE, "ALTER TYPE", "public.t"),
    ]),
    "typed_table": (("create type c as (x int)", "create table t of c"),
        "alter type c add attribute y text cascade", [(DESCRIBE, "ALTER TYPE", "public.t")]),
    "drop_type": (("create type m as enum ('a')", "create table t (id int, m m)"),
        "drop type m cascade", [(DESCRIBE, "DROP TYPE", "public.t")]),
    "drop_domain": (("create domain d as int", "create table t (id int, m d[])"),
        "drop domain d cascade", [(DESCRIBE, "DROP DOMAIN", "public.t")]),
    "drop_function": (("create function f(int) returns int immutable language sql return $1",
        "create table t (id int, g int generated always as (f(id)) stored)"),
        "drop function f(int) cascade", [(DESCRIBE, "DROP FUNCTION", "public.t")]),
    "inherited": ((T, "create table u () inherits (t)", "create table w (x int) inherits (u)"),
        "alter table t add c int", [
        (DESCRIBE, "ALTER TABLE", "public.t"), (DESCRIBE, "ALTER TABLE", "public.u"),
        (DESCRIBE, "ALTER TABLE", "public.w"),
    ]),
    "new_partition": (TREE, "create table r2 partition of r for values from (10) to (20)", [
        (DESCRIBE, "CREATE TABLE", "public.r"),
    ]),
    "tree": ((*TREE, "insert into r values (1)"), "alter table r add c int default 3",
        ALTERED_ROOT),
    "partition": (TREE, "alter table r1 alter a set default 1", ALTERED_ROOT),
    "attach": ((*TREE, "create table x (id int not null, a int)"),
        "alter table r attach partition x for values from (20) to (30)", ALTERED_ROOT),
    "detach": (TREE, "alter table r detach partition r1", [
        *ALTERED_ROOT, (DESCRIBE, "ALTER TABLE", "public.r1"),
    ]),
    "key_of_tree": ((
        "create table r (id int not null, a int) partition by range (id)",
        "create table r1 partition of r for values from (0) to (10)",
        "alter table only r add constraint k primary key (id)",
        "alter table r1 add constraint k1 primary key (id)"),
        "alter index k attach partition k1", [(DESCRIBE, "ALTER INDEX", "public.r")]),
    "drop_partition": (TREE, "drop table r1", [(DROP, "DROP TABLE", "public.r1")]),
    "block": ((), "do 'begin create table t (id int); alter table t add a int; end'", [
        (DESCRIBE, "CREATE TABLE", "public.t"), *ALTERED,
    ]),
    "function": ((T, FUNCTION), "select f()", ALTERED),
    "one_string": ((), "create table t (id int); insert into t values (1); alter table t add a int",
        [(DESCRIBE, "CREATE TABLE", "public.t"), *ALTERED]),
    "again_under_one_name": ((T,), "drop table t; create table t (other text)", [
        (DROP, "DROP TABLE", "public.t"), (DESCRIBE, "CREATE TABLE", "public.t"),
    ]),
    "replica": ((T, "set session_replication_role = replica"), "alter table t add c int", ALTERED),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_reports_the_tables_that_it_changes(source: Source, name: str) -> None:
    before, command, expected = COMMANDS[name]
    source.run(*before)
    reports = source.reports(command)
    assert facts(reports) == expected
    assert {report.text for report in reports} <= {command}
    for report in {_name(report): report for report in reports}.values():
        if report.event is DdlEvent.DESCRIBE:
            source.is_as_described(report)


def test_a_table_has_all_that_the_catalog_says(source: Source) -> None:
    [report] = source.reports(
        "create domain size as text",
        "create type mood as enum ('sad', 'it''s', '%')",
        "create table t (gone int, id int generated by default as identity primary key,"
        " s size, m mood[], g int generated always as (1) stored)",
        "alter table t drop gone",
        "comment on column t.m is 'how'",
        "comment on table t is 'what'",
    )[-1:]
    table = report.table
    assert table is not None
    assert (table.kind, table.persistence, table.identity, table.key) == ("r", "p", "d", (2,))
    assert (table.comment, table.partition_of) == ("what", None)
    assert list(table.publications) == ["p"]
    [key, size, mood, generated] = table.columns
    assert (key.not_null, key.identity, size.identity) == (True, "d", "")
    assert (size.type_name, size.value_type) == ("public.size", "text")
    assert (mood.value_type, mood.labels, mood.comment) == (
        "enum[]",
        ("sad", "it's", "%"),
        "how",
    )
    assert (generated.generated, generated.default, generated.labels) == ("s", "1", None)


NAMES = (
    "Mixed",
    "mixed",
    "a.b",
    "a b",
    'quo"te',
    "it's",
    "100%",
    "%(x)s",
    "back\\slash",
    "select",
    "é" * 31 + "x",  # 63 bytes
)


def test_names_come_as_they_are(source: Source) -> None:
    source.run('create schema "other"')
    for namespace, name in itertools.product(("public", "other"), NAMES):
        quoted = '"' + name.replace('"', '""') + '"'
        table = f"{namespace}.{quoted}"
        [made, commented, dropped] = source.reports(
            f"create table {table} ({quoted} int primary key default 7)",
            f"comment on table {table} is {_quoted(name)}",
            f"drop table {table}",
        )
        assert _name(made) == _name(dropped) == f"{namespace}.{name}"
        assert commented.table is not None and commented.table.comment == name
        assert [column.name for column in commented.table.columns] == [name]


PUBLICATIONS = (
    "create publication listed for table t (b, id), only u, s with ({via})",
    "create publication by_schema for tables in schema public, other with ({via})",
    "create publication every for all tables with ({via})",
    "create publication a_leaf for table r1 with ({via})",
    "create publication tree for table r, r1 with ({via})",
    "create publication of_a_leaf for tables in schema other with ({via})",
)


@pytest.mark.parametrize("via_root", ["true", "false"])
@pytest.mark.parametrize(
    "generated",
    ["", pytest.param(", publish_generated_columns = stored", marks=pytest.mark.majors(since=18))],
)
def test_publications_are_as_the_server_has_them(
    source: Source, via_root: str, generated: str
) -> None:
    via = f"publish_via_partition_root = {via_root}{generated}"
    source.run(
        T,
        "create schema other",
        "create table u (id int, g int generated always as (1) stored)",
        "create unlogged table w (id int)",
        *TREE,
        "create table r2 partition of r for values from (10) to (20) partition by range (id)",
        "create table other.r2a partition of r2 for values from (10) to (15)",
        "create table s (id int, x text) partition by range (id)",
        "create table s1 partition of s for values from (0) to (10)",
    )
    try:
        source.run(*(statement.format(via=via) for statement in PUBLICATIONS))
        is_old = source.session.info.server_version < 180000
        rows = source.run(
            "select pgstream.ddl_table(oid)::text from pg_class where relkind in ('r', 'p')"
            " and relnamespace::regnamespace::text in ('public', 'other')"
        )
        published = source.run(
            "select pubname, schemaname || '.' || tablename, attnames::text[]"
            " from pg_publication_tables where pubname <> 'p' and attnames is not null"
        )
        expected = {(pub, table): set(names) for pub, table, names in published}
        reported = {}
        for (text,) in rows:
            table = ddl.msgspec.json.decode(text, type=ddl.DdlTable)
            for name in table.publications:
                schema = table.schema(1, name)
                if name != "p" and schema is not None:
                    shown = {column.name for column in schema.columns}
                    # Before 18 the view lists generated columns, which pgoutput does not send.
                    shown |= {"g"} if is_old and table.name == "u" else set()
                    reported[name, f"{table.namespace}.{table.name}"] = shown
        assert reported == expected
    finally:
        source.run("drop publication listed, by_schema, every, a_leaf, tree, of_a_leaf")


def test_a_partition_that_a_publication_lists_is_reported_too(source: Source) -> None:
    source.run(*TREE, "create publication a_leaf for table r1")
    try:
        reports = source.reports("alter table r add c int")
    finally:
        source.run("drop publication a_leaf")
    assert facts(reports) == [*ALTERED_ROOT, (DESCRIBE, "ALTER TABLE", "public.r1")]
    leaf = reports[1].table
    assert leaf is not None and leaf.partition_of is not None
    assert leaf.partition_of.name == "r"
    assert list(leaf.publications) == ["a_leaf"]


def test_an_extension_reports_what_uses_its_types_once(source: Source) -> None:
    assert source.reports("create schema third", "create extension citext schema public") == []
    source.run("create table t (a citext, b citext[])")
    [report] = source.reports("alter extension citext set schema third")
    source.is_as_described(report)
    assert report.table is not None
    assert [c.type_name for c in report.table.columns] == ["third.citext", "third.citext[]"]
    [report] = source.reports("drop extension citext cascade")
    assert facts([report]) == [(DESCRIBE, "DROP EXTENSION", "public.t")]
    assert report.table is not None and report.table.columns == ()


@pytest.mark.majors(since=18)  # extension_control_path: a folder for an extension of our own
def test_an_extension_reports_each_of_its_tables_once(source: Source) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder, "extension")
        place.mkdir()
        Path(folder).chmod(0o755)
        (place / "mine.control").write_text("default_version = '1'\nrelocatable = true\n")
        (place / "mine--1.sql").write_text(
            "create table x (id int); alter table x add a int; create table y (id int);"
            "alter table public.t add c int;"
            + "".join(f"create function f{n}() returns int return {n};" for n in range(100))
        )
        (place / "mine--1--2.sql").write_text("alter table x add b int; drop table y;")
        source.run(T, f"set extension_control_path = '{folder}:$system'")
        made = source.reports("create extension mine schema public")
        assert facts(made) == [
            (DESCRIBE, "ALTER TABLE", "public.t"),
            (DESCRIBE, "CREATE EXTENSION", "public.x"),
            (DESCRIBE, "CREATE EXTENSION", "public.y"),
        ]
        for report in made:
            source.is_as_described(report)
        assert facts(source.reports("alter extension mine update to '2'")) == [
            (DROP, "DROP TABLE", "public.y"),
            (DESCRIBE, "ALTER EXTENSION", "public.x"),
        ]
        dropped = source.reports("drop extension mine")
        assert facts(dropped) == [(DROP, "DROP EXTENSION", "public.x")]


def test_what_is_rolled_back_leaves_nothing(source: Source) -> None:
    source.run(T)
    reports = source.reports(
        "begin; alter table t add gone int; rollback",
        "begin; alter table t add c int; savepoint s; alter table t add gone int;"
        " rollback to savepoint s; alter table t add d int; commit",
    )
    assert facts(reports) == [*ALTERED, *ALTERED]
    last = reports[1].table
    assert last is not None
    assert [column.name for column in last.columns] == ["id", "a", "b", "c", "d"]
    assert len(source.run("select 1 from pgstream.schema_log")) == 3


def test_a_report_has_the_id_of_its_sub_transaction(source: Source) -> None:
    source.run("create extension pg_walinspect schema pg_catalog")
    begin = source.value("select pg_current_wal_insert_lsn()::text")
    reports = source.reports(
        T,
        "begin; savepoint a; alter table t add c int; savepoint b; drop table t;"
        " set pgstream.skip_log = on; create table u (); set pgstream.skip_log = off; commit",
        "create table w (id int)",
    )
    records = source.run(
        "select xid::text::bigint, description from pg_get_wal_records_info("
        f"'{begin}', pg_current_wal_flush_lsn())"
        " where resource_manager = 'LogicalMessage' and description like 'transactional%'"
    )
    source.run("drop extension pg_walinspect")
    assert [xid for xid, _ in records] == [report.xid for report in reports]
    assert len({report.xid for report in reports}) == len(reports) == 5
    assert [report.event.value for report in reports].count("unknown") == 1


def test_a_session_may_opt_out(source: Source) -> None:
    source.run(T, "set pgstream.skip_log = true")
    log = source.run("select version from pgstream.schema_log")
    reports = source.reports(
        "alter table t add c int, drop b",
        "drop table t",
        "create temp table x ()",
        "create view v as select 1",
        "create schema other create table a () create table b ()",
    )
    assert facts(reports) == [("unknown", tag) for tag in (
        "ALTER TABLE", "DROP TABLE", "CREATE SCHEMA",
    )]  # fmt: skip
    assert {report.text for report in reports} == {None}
    assert source.run("select version from pgstream.schema_log") == log
    source.run("reset pgstream.skip_log")
    assert facts(source.reports(T)) == [(DESCRIBE, "CREATE TABLE", "public.t")]


@pytest.mark.long
def test_too_many_tables_are_one_unknown(source: Source) -> None:
    source.run(
        "set pgstream.skip_log = on", "create schema other",
        "do $$ begin for n in 0..1000 loop execute format('create table other.t%s ()', n);"
        " end loop; end $$", "reset pgstream.skip_log",
    )  # fmt: skip
    assert facts(source.reports("alter schema other rename to third")) == [
        ("unknown", "ALTER SCHEMA")
    ]
    reports = source.reports("drop table third.t0", "alter schema third rename to other")
    assert len(reports) == 1001
    assert facts(source.reports("create table other.x ()")) == [
        (DESCRIBE, "CREATE TABLE", "other.x")
    ]
    last = source.value("select schema from pgstream.schema_log order by version desc limit 1")
    assert [table["name"] for table in last["tables"]] == ["x"]
    assert last["partial"] is True


def test_above_read_committed_the_report_is_unknown(source: Source) -> None:
    """Its snapshot may miss what another session did to the table just before."""
    source.run(T, "begin isolation level repeatable read", "create table u ()")
    psql(source.dsn, "alter table t add hidden int")
    source.run("alter table t add c int")
    assert facts(source.reports("commit")) == [
        ("unknown", "CREATE TABLE"),
        ("unknown", "ALTER TABLE"),
    ]


def test_commands_of_several_transactions(source: Source) -> None:
    source.run(*TREE, "alter table r1 replica identity full", "create index i on r1 (a)")
    reports = source.reports(
        "reindex index concurrently i",
        "drop index concurrently i",
        "create index concurrently i on r1 (a)",
        "vacuum full r1",
        "alter table r detach partition r1 concurrently",
    )
    assert facts(reports) == [*ALTERED_ROOT, (DESCRIBE, "ALTER TABLE", "public.r1")]
    for report in reports:
        source.is_as_described(report)


def test_text_is_cut(source: Source) -> None:
    long = "create table t (id int) /* " + "é" * 9000 + " */"
    [report] = source.reports(long)
    assert report.text is not None
    assert len(report.text) == 8192 and report.text.endswith(ddl.CUT)
    assert long.startswith(report.text.removesuffix(ddl.CUT))


def test_a_role_without_rights_runs_ddl(source: Source) -> None:
    source.run("drop role if exists nobody_here", "create role nobody_here")
    source.run("grant create, usage on schema public to nobody_here")
    reports = source.reports(
        "set role nobody_here", T, "alter table t add c int", "reset role",
        "drop owned by nobody_here", "drop role nobody_here",
    )  # fmt: skip
    assert facts(reports) == [
        (DESCRIBE, "CREATE TABLE", "public.t"), *ALTERED, (DROP, "DROP OWNED", "public.t"),
    ]  # fmt: skip
    assert source.run(
        "select p.proname from pg_proc as p, aclexplode(p.proacl) as a where p.pronamespace ="
        " 'pgstream'::regnamespace and a.grantee = 0 and p.proname ~ '^ddl_'"
    ) == []  # fmt: skip


def test_ddl_does_not_wait_for_a_table_that_another_session_locks(source: Source) -> None:
    source.run(
        "create type m as enum ('a')",
        "create table t (m m default 'a')",
        "create table u (m m default 'a', g int generated always as (1) stored)",
    )
    with source.connect() as other:
        other.execute("begin; lock table u in access exclusive mode")
        source.run("set statement_timeout = '20s'")
        reports = source.reports("alter type m add value 'b'")
        other.execute("rollback")
    tag = "ALTER TYPE"
    assert facts(reports) == [
        (DESCRIBE, tag, "public.t"), (DESCRIBE, tag, "public.u"), ("unknown", tag),
    ]  # fmt: skip
    locked = reports[1].table
    assert locked is not None
    assert [c.default for c in locked.columns] == ["'a'::public.m", None]
    assert locked.columns[0].labels == ("a", "b")


def test_two_sessions_do_not_wait_for_each_other(source: Source) -> None:
    source.run(T, "create table u (id int)")
    with source.connect() as other:
        other.execute("begin; alter table u add c int; create table x (id int)")
        source.run("set lock_timeout = '5s'")
        reports = source.reports("begin; alter table t add c int; create table y (id int); commit")
        other.execute("commit")
    assert facts(reports) == [*ALTERED, (DESCRIBE, "CREATE TABLE", "public.y")]


def test_a_failure_of_ours_is_a_warning(source: Source) -> None:
    source.run("create table kept ()", "alter table pgstream.schema_log rename to away")
    try:
        reports = source.reports(T, "drop table kept", "set pgstream.skip_log = on",
            "alter table t add c int", "reset pgstream.skip_log")  # fmt: skip
    finally:
        source.run("alter table pgstream.away rename to schema_log")
    assert facts(reports) == [
        ("unknown", tag) for tag in ("CREATE TABLE", "DROP TABLE", "ALTER TABLE")
    ]
    assert len(source.run("select 1 from pg_attribute where attrelid = 't'::regclass"
                          " and attnum > 0")) == 4  # fmt: skip
    assert all("could not report" in warning for warning in source.warnings)
    assert "schema_log" in source.warnings[0]
    source.warnings.clear()


def test_a_locked_schema_log_holds_up_no_ddl(source: Source) -> None:
    with source.connect() as other:
        other.execute("begin; lock table pgstream.schema_log")
        source.run("set statement_timeout = '20s'")
        assert facts(source.reports(T)) == [("unknown", "CREATE TABLE")]
        other.execute("rollback")
    assert len(source.warnings) == 1
    source.warnings.clear()


def test_settings_of_the_session_change_nothing(source: Source) -> None:
    source.run(
        "set quote_all_identifiers = on; set search_path = other, public; set bytea_output ="
        " 'escape'; set timezone = 'Asia/Tokyo'; set intervalstyle = 'iso_8601';"
        " set transform_null_equals = on; set standard_conforming_strings = off;"
        " set escape_string_warning = off;"
        " set check_function_bodies = off; set lc_messages = 'C'"
    )
    source.run("create type public.m as enum ('a')", "create table public.t (id int)")
    [report] = source.reports(
        "alter table public.t add x bytea default '\\\\x00', add y public.m default 'a',"
        " add z timestamptz default '2024-01-01'"
    )
    source.is_as_described(report)
    source.run("reset all")
    assert report.table is not None
    assert [c.type_name for c in report.table.columns[2:]] == [
        "public.m",
        "timestamp with time zone",
    ]


def test_the_log_is_readable(source: Source) -> None:
    source.run(
        "create table t (id int primary key, name varchar(5) not null default 'x', a int, b int,"
        " unique (a, b))",
        *TREE,
        "comment on column t.name is 'as called'",
    )
    rows = source.run("select schema_name, schema, acked from pgstream.schema_log order by version")
    assert [(name, acked) for name, _, acked in rows] == [("public", False)] * 4
    tables = rows[-1][1]["tables"]
    oid = str(source.value("select 't'::regclass::oid::bigint"))
    assert [table["name"] for table in tables] == ["r", "t"]
    assert tables[1] == {
        "oid": oid,
        "name": "t",
        "pgstream_id": oid,
        "primary_key_columns": ["id"],
        "columns": [
            _column(oid, 1, "id", "integer", unique=True, nullable=False),
            _column(oid, 2, "name", "character varying(5)", nullable=False, metadata="as called")
            | {"default": "'x'::character varying"},
            _column(oid, 3, "a", "integer", unique=True),
            _column(oid, 4, "b", "integer", unique=True),
        ],
    }
    source.run("drop table t, r")
    last = "select schema from pgstream.schema_log order by version desc limit 1"
    assert source.value(last) == {"tables": []}


def _column(oid: str, attnum: int, name: str, type_name: str, **values: Any) -> dict[str, Any]:
    column = {"name": name, "type": type_name, "default": None, "nullable": True, "unique": False}
    column |= {"generated": False, "metadata": None, "pgstream_id": f"{oid}-{attnum}"}
    return column | values


def test_what_has_landed_is_acknowledged(source: Source) -> None:
    with connect(source.dsn) as session:
        source.run(T)
        seen = schema_triggers.unacknowledged(session)
        assert len(seen.versions) == 1
        source.run("alter table t add c int")
        assert not schema_triggers.acknowledge(session, seen, Lsn(seen.lsn - 1))
        until(lambda: current_lsn(session) >= seen.lsn)
        assert schema_triggers.acknowledge(session, seen, current_lsn(session))
        left = schema_triggers.unacknowledged(session)
        assert len(left.versions) == 1 and left.versions != seen.versions
    acked = source.run("select acked from pgstream.schema_log order by version")
    assert acked == [(True,), (False,)]


def test_our_tables_are_no_part_of_any_publication(source: Source) -> None:
    source.run(T)
    with connect(source.dsn) as session:
        names = [table.full_name for table in publication.published(session, "p")]
        findings = preflight(session, config())
    assert names == ["public.t"]
    assert [f for f in findings if f.severity is not Severity.NOTE and "pgstream." in str(f)] == []
    [note] = [finding for finding in findings if finding.check == "ddl"]
    assert "event triggers report DDL in order" in note.fact


OBJECTS = (
    "select 'class', relname from pg_class where relnamespace = to_regnamespace('pgstream')"
    " union all select 'function', proname from pg_proc"
    " where pronamespace = to_regnamespace('pgstream')"
    " union all select 'schema', nspname from pg_namespace where nspname = 'pgstream'"
    " union all select 'event', evtname from pg_event_trigger order by 1, 2"
)


def test_install_twice_changes_nothing(dsn: str) -> None:
    assert done(dsn, install, "a") == Installed(VERSION)
    before = done(dsn, state)
    assert before.is_current and before.readers == ("a",)
    assert done(dsn, install, "a") == Installed(VERSION)
    assert done(dsn, state) == before
    assert done(dsn, install, "b") == Installed(VERSION)
    after = done(dsn, state)
    assert after.readers == ("a", "b") and after.versions == before.versions


def test_install_at_the_same_time(dsn: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda slot: done(dsn, install, slot), "abc"))
    assert results == [Installed(VERSION)] * 3
    assert done(dsn, state).readers == ("a", "b", "c")


def test_teardown_removes_everything_after_the_last_reader(dsn: str) -> None:
    before = psql(dsn, OBJECTS)
    database = psql(dsn, "select current_database()")[0][0]
    psql(dsn, f"select pg_create_logical_replication_slot('{database}_a', 'pgoutput')")
    done(dsn, install, f"{database}_a")
    done(dsn, install, "b")
    psql(dsn, T)
    assert not done(dsn, remove, "c")
    assert not done(dsn, remove, "b")  # the slot of a is there
    assert done(dsn, state).readers == (f"{database}_a",)
    psql(dsn, f"select pg_drop_replication_slot('{database}_a')")
    assert done(dsn, remove, f"{database}_a")
    assert psql(dsn, OBJECTS) == before
    assert not done(dsn, remove, f"{database}_a")


@pytest.mark.long
def test_removal_waits_only_a_moment_for_open_ddl(dsn: str) -> None:
    done(dsn, install, "a")
    before = psql(dsn, OBJECTS)
    with psycopg.connect(dsn) as application:
        application.execute(T.encode())
        with pytest.raises(LocksHeld):
            done(dsn, remove, "a")
    assert [row for row in psql(dsn, OBJECTS) if row[1] != "t"] == before
    assert done(dsn, remove, "a")


@pytest.mark.parametrize("is_first", [True, False])
def test_the_outbox_may_be_in_the_same_schema(dsn: str, is_first: bool) -> None:
    operations = [(install_outbox,), (install, "a")]
    for operation in operations if is_first else reversed(operations):
        done(dsn, *operation)
    psql(dsn, T)
    objects = psql(dsn, OBJECTS)
    assert done(dsn, remove, "a")
    assert psql(dsn, "select to_regclass('pgstream.events') is not null") == [(True,)]
    done(dsn, install, "a")
    assert psql(dsn, OBJECTS) == objects
    assert done(dsn, uninstall_outbox)
    assert done(dsn, state).is_current
    assert done(dsn, remove, "a")
    assert psql(dsn, OBJECTS) == []


def test_an_older_version_is_upgraded(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done(dsn, install, "a")
    before = done(dsn, state)
    psql(dsn, T, "alter function pgstream.ddl_xid() rename to ddl_removed")
    monkeypatch.setattr(schema_triggers, "VERSION", 3)
    monkeypatch.setattr(schema_triggers, "UPGRADES", {3: ("drop_event_triggers",)})
    assert done(dsn, install, "a") == Installed(3)
    after = done(dsn, state)
    assert (after.version, after.is_current) == (3, True)
    assert after.versions != before.versions
    assert len(psql(dsn, "select 1 from pgstream.schema_log")) == 1


RECORD = """
    select obj_description(oid, 'pg_event_trigger') from pg_event_trigger
    where evtname = 'pgstream_schema_ddl'
"""


def test_a_newer_version_stays(dsn: str) -> None:
    done(dsn, install, "a")
    [(record,)] = psql(dsn, RECORD)
    later = json.dumps(json.loads(record) | {"version": 99})
    psql(dsn, f"comment on event trigger pgstream_schema_ddl is '{later}'")
    before = done(dsn, state)
    assert done(dsn, install, "b") == Installed(99)
    after = done(dsn, state)
    assert (after.readers, after.versions) == (("a", "b"), before.versions)


@pytest.mark.parametrize(
    "damage",
    [
        "alter event trigger pgstream_schema_ddl disable",
        "alter event trigger pgstream_schema_drop enable",
        "drop event trigger pgstream_schema_ddl",
        "drop function pgstream.ddl_xid()",
        "drop table pgstream.schema_log",
        "comment on event trigger pgstream_schema_ddl is 'mine'",
    ],
)
def test_install_repairs_what_is_damaged(dsn: str, damage: str) -> None:
    done(dsn, install, "a")
    whole = done(dsn, state)
    psql(dsn, damage)
    assert not done(dsn, state).is_current
    assert done(dsn, install, "a") == Installed(VERSION)
    assert done(dsn, state).is_current
    assert done(dsn, state).versions != whole.versions


def test_disabled_and_enabled_again_shows(dsn: str) -> None:
    done(dsn, install, "a")
    before = done(dsn, state)
    psql(
        dsn,
        "alter event trigger pgstream_schema_ddl disable",
        "alter event trigger pgstream_schema_ddl enable always",
    )
    after = done(dsn, state)
    assert after.is_current and after.versions != before.versions


@pytest.fixture
def role(dsn: str) -> Iterator[tuple[str, str]]:
    """A role without rights, and the DSN with which it connects."""
    name = f"r_{psql(dsn, 'select current_database()')[0][0]}"
    psql(dsn, f"create role {name} login password 'x'")
    yield name, make_conninfo(dsn, user=name, password="x")
    psql(dsn, f"drop owned by {name} cascade", f"drop role {name}")


def test_without_rights_there_is_a_reason_and_nothing_else(dsn: str, role: Any) -> None:
    name, as_role = role
    before = psql(dsn, OBJECTS)
    refused = done(as_role, install, "a")
    assert refused.version is None
    assert "grant create on database" in refused.reason and name in refused.reason
    psql(dsn, f"grant create on database {as_role.split('dbname=')[1].split()[0]} to {name}")
    refused = done(as_role, install, "a")
    assert refused.version is None
    assert "permission denied to create event trigger" in refused.reason
    assert "'pgstream setup' once" in refused.reason
    assert psql(dsn, OBJECTS) == before
    assert not done(as_role, remove, "a")


def test_another_owner_of_the_schema_is_a_reason(dsn: str, role: Any) -> None:
    """Its owner could put functions of its own into it, for a superuser to run."""
    name, as_role = role
    psql(dsn, f"create schema pgstream authorization {name}")
    refused = done(dsn, install, "a")
    assert f"belongs to role '{name}'" in refused.reason
    psql(dsn, refused.reason.partition("run ")[2].partition(", or ")[0])
    assert done(dsn, install, "a") == Installed(VERSION)
    # What a superuser has installed serves another role; it registers no reader.
    assert done(as_role, install, "a") == Installed(VERSION)
    other = done(as_role, install, "b")
    assert other.version == VERSION and "belongs to role" in other.reason


def test_a_log_of_another_product_stays(dsn: str) -> None:
    """That of xata's pgstream has the same name."""
    psql(
        dsn,
        "create schema pgstream",
        "create table pgstream.schema_log (id int primary key, version bigint not null)",
    )
    before = psql(dsn, OBJECTS)
    assert "of another product" in done(dsn, install, "a").reason
    assert psql(dsn, OBJECTS) == before
    psql(dsn, "drop table pgstream.schema_log")
    assert done(dsn, install, "a") == Installed(VERSION)
    psql(dsn, "alter table pgstream.schema_log set logged")
    assert not done(dsn, state).is_current
    psql(dsn, done(dsn, install, "a").reason.partition("run ")[2].partition(" if ")[0])
    assert done(dsn, state).is_current


def test_a_read_only_server_is_a_reason(dsn: str) -> None:
    with closing(connect(dsn)) as session:
        session.execute("set default_transaction_read_only = on")
        refused = install(session, "a")
    assert refused.version is None and "read-only" in refused.reason
    assert psql(dsn, OBJECTS) == []


def test_version_and_readers_survive_a_crash(own_postgres: Any) -> None:
    dsn = own_postgres.dsn
    done(dsn, install, "a")
    psql(dsn, T)
    before = done(dsn, state)
    own_postgres.kill()
    own_postgres.start()
    assert done(dsn, state) == before
    assert psql(dsn, "select 1 from pgstream.schema_log") == []
    psql(dsn, "alter table t add c int")
    assert psql(dsn, "select schema_name from pgstream.schema_log") == [("public",)]


def test_reports_carry_a_secret_that_no_other_role_can_read(dsn: str, role: Any) -> None:
    done(dsn, install, "a")
    psql(dsn, "create table t (id int primary key)")
    [(oid,)] = psql(dsn, f"select (({RECORD})::jsonb ->> 'token')::bigint")
    [(secret,)] = psql(dsn, f"select convert_from(lo_get({oid}), 'UTF8')")
    with connect(dsn) as session:
        assert state(session).wrote(secret)
        assert not state(session).wrote(secret[:-1])
    _, own_dsn = role
    for query in (f"select lo_get({oid})", "select pgstream.ddl_token()"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            psql(own_dsn, query)
    assert done(dsn, remove, "a")
    assert psql(dsn, "select from pg_largeobject_metadata") == []


def test_a_database_in_another_encoding(postgres: Any) -> None:
    name = "latin_ddl"
    psql(
        postgres.dsn,
        f"drop database if exists {name} with (force)",
        f"create database {name} encoding 'LATIN1' locale 'C' template template0",
    )
    dsn = postgres.dsn_of(name)
    try:
        with closing(connect(dsn)) as session:
            install(session, "a")
        psql(dsn, "create publication p for all tables")
        source = Source(dsn)
        with source.session:
            [report] = source.reports('create table "größe" ("ä" text default \'é\')')
            source.is_as_described(report)
            assert _name(report) == "public.größe"
            assert report.text == 'create table "größe" ("ä" text default \'é\')'
            assert source.warnings == []
        psql(dsn, f"select pg_drop_replication_slot('{source.slot}')")
    finally:
        psql(postgres.dsn, f"drop database {name} with (force)")


def config(**more: Any) -> SourceConfig:
    return SourceConfig(slot="s", publication="p", tables="all", **more)


def ddl_note(dsn: str, **more: Any) -> Finding:
    with connect(dsn) as session:
        [finding] = [f for f in preflight(session, config(**more)) if f.check == "ddl"]
    assert finding.severity is Severity.NOTE
    return finding


def test_check_says_how_ddl_is_seen_and_writes_nothing(dsn: str, role: Any) -> None:
    name, as_role = role
    psql(dsn, T)
    before = psql(dsn, OBJECTS)
    assert "will install event triggers" in ddl_note(dsn).fact
    off = ddl_note(dsn, schema_triggers=False)
    assert "is seen when its next row changes" in off.fact and "schema_triggers" in off.remedy
    refused = ddl_note(as_role)
    assert "is seen when its next row changes" in refused.fact
    assert "grant create on database" in refused.remedy
    psql(dsn, refused.remedy.partition("run ")[2])
    assert f"role '{name}' is no superuser" in ddl_note(as_role).remedy
    assert psql(dsn, OBJECTS) == before
    done(dsn, install, "s")
    for reader in (dsn, as_role):
        assert "event triggers report DDL in order" in ddl_note(reader).fact
    psql(dsn, "alter event trigger pgstream_schema_ddl disable")
    assert "will install event triggers" in ddl_note(dsn).fact


def publish(dsn: str, **source: Any) -> None:
    written = {"slot": "s", "publication": "p"} | source
    config = parse(yaml.safe_dump({"pipeline": "x", "source": written}))
    pipeline = Pipeline(config, dsn, Lake("/nowhere"), SETTINGS, Path("/nowhere"))
    with closing(connect(dsn)) as session:
        prepare.publish(pipeline, session)


def test_setup_installs_them_and_removes_them_when_they_are_switched_off(
    dsn: str, role: Any
) -> None:
    psql(dsn, T)
    publish(dsn)
    assert done(dsn, state).readers == ("s",)
    assert psql(dsn, "select tablename from pg_publication_tables") == [("t",)]
    publish(dsn)
    publish(dsn, schema_triggers=False)
    assert psql(dsn, "select evtname from pg_event_trigger") == []
    publish(dsn, schema_triggers=False)


def test_setup_without_the_right_publishes_all_the_same(dsn: str, role: Any, caplog: Any) -> None:
    name, as_role = role
    psql(
        dsn,
        f"alter role {name} replication",
        f"grant create on database {psql(dsn, 'select current_database()')[0][0]} to {name}",
        T,
        f"alter table t owner to {name}",
    )
    with caplog.at_level("INFO"):
        publish(as_role)
    assert "report DDL: permission denied to create event trigger" in caplog.text
    assert psql(dsn, "select tablename from pg_publication_tables") == [("t",)]
    assert psql(dsn, "select to_regnamespace('pgstream')") == [(None,)]
