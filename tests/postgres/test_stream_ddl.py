"""DDL in the stream: in order with rows, with the columns that the rows after it have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg
import pytest

from pgstream_dagster.schema.changes import GAP_ORDINAL, Op
from pgstream_dagster.schema.ddl import DdlEntry, DdlEvent, DdlReport
from tests.support.harness.capture import Capture
from tests.support.plugins.cluster import psql
from tests.support.reference.change import Change

TABLE = "create table t (id bigint primary key, x text)"
MOODS = ("create type mood as enum ('low')", "create table t (id bigint primary key, m mood)")
ROWS = "insert into t select g, repeat('x', 100) from generate_series({}, {}) as g"


@contextmanager
def captured(dsn: str, *statements: str) -> Iterator[Capture]:
    """A capture of a source with event triggers, after these statements, each of its own."""
    capture = Capture(dsn, reports_ddl=True)
    with capture:
        psql(dsn, *statements)
        capture.catch_up()
        yield capture


def landed(dsn: str, *statements: str) -> Capture:
    with captured(dsn, *statements) as capture:
        return capture


def transaction(dsn: str, *statements: str) -> Capture:
    """A capture that has landed one transaction."""
    capture = Capture(dsn, reports_ddl=True)
    with capture, psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[arg-type]
        connection.commit()
        capture.catch_up()
    return capture


def shown(capture: Capture) -> list[str]:
    """Each change: its op, and of DDL the tag."""
    return [f"{c.op} {_tag(c)}".rstrip() for c in capture.log.changes if c.op is not Op.MESSAGE]


def _tag(change: Change) -> str:
    return json.loads(change.payload or "{}").get("tag", "") if change.op is Op.DDL else ""


def names(entry: DdlEntry) -> list[str]:
    return [column.name for column in entry.schema.columns]


def test_ddl_without_rows_is_landed(dsn: str) -> None:
    """field 58, P115: DDL with no later DML is still recorded."""
    psql(dsn, TABLE)
    capture = landed(dsn, "alter table t add column y int default 7")
    assert shown(capture) == ["ddl ALTER TABLE"]
    [entry] = capture.log.ddl
    assert names(entry) == ["id", "x", "y"]
    assert entry.schema.columns[2].missing == "7"
    assert entry.schema.schema_id == capture.log.schemas[entry.schema.relation_id][1].schema_id


def test_each_row_has_the_version_of_its_place_in_the_transaction(dsn: str) -> None:
    """field 51, P114: DDL and rows mixed in one transaction, several DDLs among them."""
    psql(dsn, TABLE)
    capture = transaction(
        dsn,
        "insert into t values (1, 'a')",
        "alter table t add column y int default 7",
        "insert into t values (2, 'b', 8)",
        "alter table t rename column y to z",
        "alter table t drop column x",
        "insert into t values (3, 9)",
    )
    assert shown(capture) == [
        "insert",
        "ddl ALTER TABLE",
        "insert",
        "ddl ALTER TABLE",
        "ddl ALTER TABLE",
        "insert",
    ]
    rows = [c.after for c in capture.log.changes if c.op is Op.INSERT]
    assert rows == [{"id": "1", "x": "a"}, {"id": "2", "x": "b", "y": "8"}, {"id": "3", "z": "9"}]
    assert [c.position.ordinal for c in capture.log.changes] == list(range(6))
    assert [e.ordinal for e in capture.log.ddl] == [1, 3, 4]
    assert [names(e) for e in capture.log.ddl] == [["id", "x", "y"], ["id", "x", "z"], ["id", "z"]]


@pytest.fixture
def streamed(dsn: str) -> str:
    """A database whose larger transactions are streamed while they run."""
    [(name,)] = psql(dsn, "select current_database()")
    psql(dsn, f"alter database {name} set logical_decoding_work_mem = '64kB'", TABLE)
    return dsn


def test_ddl_of_a_savepoint_that_was_rolled_back_is_not_there(dsn: str) -> None:
    psql(dsn, TABLE)
    capture = transaction(dsn, *ROLLED_BACK)
    assert shown(capture) == ["insert", "ddl ALTER TABLE", "insert"]
    assert [names(entry) for entry in capture.log.ddl] == [["id", "x", "kept"]]


def test_ddl_of_a_savepoint_in_a_transaction_that_is_sent_in_parts_is_not_there(
    streamed: str,
) -> None:
    capture = transaction(
        streamed, ROWS.format(100, 3_000), *ROLLED_BACK, ROWS_AFTER.format(4_000, 7_000)
    )
    ops = [op for op in shown(capture) if op != "insert"]
    assert ops == ["ddl ALTER TABLE"]
    assert [names(entry) for entry in capture.log.ddl] == [["id", "x", "kept"]]
    changes = [c for c in capture.log.changes if c.op is not Op.MESSAGE]
    place = next(i for i, c in enumerate(changes) if c.op is Op.DDL)
    assert set(changes[place - 1].after or {}) == {"id", "x"}
    assert set(changes[place + 1].after or {}) == {"id", "x", "kept"}
    assert [c.position.ordinal for c in changes] == list(range(len(changes)))


ROLLED_BACK = (
    "insert into t values (1, 'a')",
    "savepoint s",
    "alter table t add column gone int",
    "insert into t values (2, 'b', 1)",
    "rollback to savepoint s",
    "alter table t add column kept int",
    "insert into t values (3, 'c', 1)",
)
ROWS_AFTER = "insert into t select g, repeat('x', 100), g from generate_series({}, {}) as g"


def test_a_transaction_that_is_rolled_back_leaves_nothing(streamed: str) -> None:
    capture = Capture(streamed, reports_ddl=True)
    with capture, psycopg.connect(streamed) as connection:
        connection.execute("alter table t add column y int")
        connection.execute(ROWS.format(1, 3_000))  # type: ignore[arg-type]
        connection.rollback()
        psql(streamed, "insert into t values (7, 'kept')")
        capture.catch_up()
    assert shown(capture) == ["insert"]
    assert not capture.log.ddl


FILLED = "{} as select g as id, repeat('x', 100) as x from generate_series(1, {}) as g"


@pytest.mark.parametrize("count", [3, 5_000])
def test_a_table_that_is_created_with_rows_is_there_before_them(streamed: str, count: int) -> None:
    """pgstream G8: CREATE TABLE AS reports its table after its rows."""
    capture = transaction(
        streamed,
        "insert into t values (1, 'a')",
        FILLED.format("create table filled", count),
        "insert into t values (2, 'b')",
        f"select * into copied from filled where id <= {count // 2}",
    )
    ops = ["insert", "ddl CREATE TABLE AS", *["insert"] * (count + 1)]
    assert shown(capture) == [*ops, "ddl SELECT INTO", *["insert"] * (count // 2)]
    relations = [c.relation for c in capture.log.changes if c.op is Op.DDL]
    assert relations == ["filled", "copied"]
    changes = [c for c in capture.log.changes if c.op is not Op.MESSAGE]
    assert [c.position.ordinal for c in changes] == list(range(len(changes)))


def test_a_new_table_is_there_before_its_rows_with_its_columns(dsn: str) -> None:
    """pgstream 1, 6: a table that is created and filled in one transaction."""
    capture = transaction(dsn, TABLE, "insert into t values (1, 'a')", "drop table t", TABLE)
    assert shown(capture) == [
        "ddl CREATE TABLE",
        "insert",
        "ddl DROP TABLE",
        "ddl CREATE TABLE",
    ]
    first, dropped, second = capture.log.ddl
    assert first.schema.relation_id == dropped.schema.relation_id != second.schema.relation_id
    assert [first.is_drop, dropped.is_drop, second.is_drop] == [False, True, False]


REMADE = (
    "insert into t values (1, 'a')",
    "alter table t drop column x",
    "alter table t add column x text",
    "insert into t values (2, 'b')",
)


def test_a_column_that_is_made_again_is_another_one_also_far_behind(dsn: str) -> None:
    """field 49, P116: drop and add of one name and type is no rename; no gap, no copy needed."""
    psql(dsn, TABLE)
    capture = Capture(dsn, reports_ddl=True)
    psql(dsn, *REMADE, *REMADE[1:3])  # the catalog has yet another column by now
    with capture:
        capture.catch_up()
    assert shown(capture).count("gap") == 0
    attnums = [entry.schema.attnums["x"] for entry in capture.log.ddl if "x" in names(entry)]
    assert attnums == [3, 4]
    assert not [reason for _, since, reason in capture.requested if since]


@pytest.mark.parametrize(
    "hidden",
    [
        pytest.param(
            (
                "alter event trigger pgstream_schema_ddl disable",
                *REMADE[1:3],
                "alter event trigger pgstream_schema_ddl enable always",
            ),
            id="disabled for a while",
        ),
        pytest.param(
            ("set pgstream.skip_log = true; alter table t drop column x, add column x text",),
            id="left out by its session",
        ),
    ],
)
def test_ddl_that_was_not_reported_is_never_passed_over(dsn: str, hidden: tuple[str, ...]) -> None:
    psql(dsn, TABLE)
    capture = Capture(dsn, reports_ddl=True)
    with capture:
        psql(dsn, "insert into t values (1, 'a')", *hidden, "insert into t values (2, 'b')")
        capture.catch_up()
    [(relation_id,)] = psql(dsn, "select 't'::regclass::oid::bigint")
    newest = capture.log.schemas[relation_id][1]
    gaps = [c for c in capture.log.changes if c.position.ordinal == GAP_ORDINAL]
    assert gaps or newest.attnums["x"] == 3


def test_another_key_brings_a_gap_before_the_command(dsn: str) -> None:
    psql(dsn, "create table t (id bigint primary key, x text not null)")
    capture = landed(
        dsn,
        "insert into t values (1, 'a')",
        "alter table t drop constraint t_pkey, add primary key (x)",
    )
    ops = [(c.op, c.position.ordinal == GAP_ORDINAL) for c in capture.log.changes]
    assert ops[1:] == [(Op.GAP, True), (Op.DDL, False)]
    assert capture.log.ddl[-1].schema.key == ("x",)
    assert any(since for _, since, _ in capture.requested)


def test_rows_come_under_the_new_name_at_once(dsn: str) -> None:
    """field 52: renamed and moved; before 16 no row tells that a schema was renamed."""
    psql(dsn, TABLE, "create schema other")
    capture = landed(
        dsn,
        "insert into t values (1, 'a')",
        "alter table t rename to u",
        "alter table u set schema other",
        "alter schema other rename to another",
        "insert into another.u values (2, 'b')",
    )
    places = [(c.op, f"{c.namespace}.{c.relation}") for c in capture.log.changes]
    assert places == [
        (Op.INSERT, "public.t"),
        (Op.DDL, "public.u"),
        (Op.DDL, "other.u"),
        (Op.DDL, "another.u"),
        (Op.INSERT, "another.u"),
    ]


def test_tables_that_are_not_published_leave_nothing(dsn: str) -> None:
    """P117: temporary, unlogged and unpublished tables; functions and indexes (pgstream 25, 27)."""
    psql(dsn, TABLE)
    capture = Capture(dsn, reports_ddl=True, tables=["public.t"])
    with capture:
        psql(
            dsn,
            "create table unpublished (id int primary key)",
            "alter table unpublished add column x int",
            "drop table unpublished",
            "create temporary table passing as select 1 as x",
            "create unlogged table unlogged (id int primary key)",
            "create index on t (x)",
            "create function f() returns int language sql as 'select 1'",
        )
        capture.catch_up()
    assert shown(capture) == []


def test_what_is_no_report_is_passed_over_with_a_warning(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    psql(dsn, TABLE)
    capture = landed(
        dsn,
        "select pg_logical_emit_message(true, 'pgstream.ddl', 'of another program')",
        "insert into t values (1, 'a')",
    )
    assert shown(capture) == ["insert"]
    assert "a logical message 'pgstream.ddl' that is no report is ignored" in caplog.text


def test_many_commands_in_one_string_are_landed_one_by_one(dsn: str) -> None:
    """pgstream G7, G10: a migration sent as one string; each change once, data once."""
    psql(dsn, TABLE)
    script = """
        alter table t add a int, add column b int default 2;
        insert into t values (1, 'x', 1, 2);
        alter table t rename a to "A b.c";
        do $$ begin execute 'alter table t alter column b type bigint'; end $$;
        insert into t values (2, 'y', 3, 4)
    """
    capture = landed(dsn, script)
    assert shown(capture) == [
        "ddl ALTER TABLE",
        "insert",
        *["ddl ALTER TABLE"] * 2,
        "insert",
    ]
    assert [names(entry)[2:] for entry in capture.log.ddl] == [
        ["a", "b"],
        ["A b.c", "b"],
        ["A b.c", "b"],
    ]
    assert [entry.schema.columns[3].type_name for entry in capture.log.ddl][-2:] == [
        "integer",
        "bigint",
    ]
    rows = [c.after for c in capture.log.changes if c.op is Op.INSERT]
    assert rows[1] == {"id": "2", "x": "y", "A b.c": "3", "b": "4"}


def test_ddl_that_arrives_again_is_landed_once(dsn: str) -> None:
    """P114: a stream that is ended and begins again."""
    psql(dsn, TABLE)
    capture = Capture(dsn, reports_ddl=True)
    with capture:
        psql(dsn, "alter table t add column y int", "insert into t values (1, 'a', 2)")
        capture.catch_up()
    with capture:
        psql(dsn, "alter table t rename y to z")
        capture.catch_up()
    assert shown(capture) == ["ddl ALTER TABLE", "insert", "ddl ALTER TABLE"]
    assert [names(entry)[2] for entry in capture.log.ddl] == ["y", "z"]


def test_a_report_that_another_role_wrote_is_ignored(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Any role may write logical messages; a forged one must not exchange columns."""
    psql(dsn, "create table t (id bigint primary key, x text, y text)")
    capture = Capture(dsn, reports_ddl=True)
    with capture:
        psql(dsn, "insert into t values (1, 'a', 'b')", "comment on table t is 'as it is'")
        capture.catch_up()
        [entry] = capture.log.ddl
        assert entry.description is not None
        x, y = entry.description.columns[1:]
        swapped = [
            msgspec.structs.replace(x, attnum=y.attnum),
            msgspec.structs.replace(y, attnum=x.attnum),
        ]
        table = msgspec.structs.replace(
            entry.description, columns=(entry.description.columns[0], *swapped)
        )
        forged = DdlReport(1, "a guess", 3, DdlEvent.DESCRIBE, "ALTER TABLE", None, table)
        content = msgspec.json.encode(forged).decode().replace("'", "''")
        psql(
            dsn,
            f"select pg_logical_emit_message(true, 'pgstream.ddl', '{content}')",
            "insert into t values (2, 'a', 'b')",
        )
        capture.catch_up()
    assert shown(capture) == ["insert", "ddl COMMENT", "insert"]
    assert "that our event triggers did not write is ignored" in caplog.text


def test_a_table_that_another_session_altered_meanwhile_keeps_its_newer_columns(dsn: str) -> None:
    """A command on a type describes tables that it does not lock."""
    psql(dsn, *MOODS)
    capture = Capture(dsn, reports_ddl=True)
    with capture, psycopg.connect(dsn) as connection:
        psql(dsn, "insert into t values (1, 'low')")
        connection.execute("alter type mood rename value 'low' to 'down'")
        psql(dsn, "alter table t add column y int")
        connection.commit()
        psql(dsn, "insert into t values (2, 'down', 3)")
        capture.catch_up()
    assert shown(capture) == ["insert", "ddl ALTER TABLE", "insert"]
    assert names(capture.log.ddl[-1]) == ["id", "m", "y"]
    [relation_id] = {entry.schema.relation_id for entry in capture.log.ddl}
    newest = capture.log.schemas[relation_id][1]
    assert [column.name for column in newest.columns] == ["id", "m", "y"]


def test_a_label_is_landed_for_each_table_that_uses_the_type(dsn: str) -> None:
    """field 53; pgstream G25."""
    psql(
        dsn,
        "create type mood as enum ('low')",
        "create table t (id bigint primary key, m mood)",
        "create table u (id bigint primary key, m mood[])",
        "insert into t values (1, 'low')",
        "insert into u values (1, '{low}')",
    )
    capture = landed(
        dsn,
        "insert into t values (2, 'low')",
        "insert into u values (2, '{low}')",
        "alter type mood add value 'high'",
        "insert into t values (3, 'high')",
    )
    assert shown(capture) == ["insert", "insert", "ddl ALTER TYPE", "ddl ALTER TYPE", "insert"]
    labels = [entry.description.columns[1].labels for entry in capture.log.ddl if entry.description]
    assert labels == [("low", "high"), ("low", "high")]


@pytest.mark.parametrize(
    "command",
    [
        "alter type mood rename value 'low' to 'down'",
        "alter schema public rename to private",
    ],
)
def test_a_table_that_another_session_made_anew_is_not_taken_for_the_former(
    dsn: str, command: str
) -> None:
    psql(dsn, *MOODS)
    capture = Capture(dsn, reports_ddl=True)
    with capture, psycopg.connect(dsn) as connection:
        psql(dsn, "insert into t values (1, 'low')")
        connection.execute(command)  # type: ignore[arg-type]
        psql(dsn, "alter table t rename to former", "drop table former")
        connection.commit()
        capture.catch_up()
    tags = [entry.tag for entry in capture.log.ddl]
    assert tags == ["ALTER TABLE", "DROP TABLE"]


@pytest.mark.parametrize("rows", ["where false", "with no data"])
def test_a_table_that_is_created_empty_is_reported_once(streamed: str, rows: str) -> None:
    capture = transaction(
        streamed,
        f"create table filled as select 1::bigint as id, 'x'::text as x {rows}",
        "alter table filled drop column x",
        "alter table filled add column x text",
        "insert into filled select g, repeat('x', 100) from generate_series(1, 5000) as g",
    )
    assert shown(capture)[:3] == ["ddl CREATE TABLE AS", "ddl ALTER TABLE", "ddl ALTER TABLE"]
    assert shown(capture).count("insert") == 5_000
    assert len(capture.log.ddl) == 3
    oid = capture.log.ddl[-1].schema.relation_id
    assert capture.log.schemas[oid][1].attnums["x"] == 3


def test_a_report_that_cannot_be_is_ignored(dsn: str) -> None:
    """Any role may write a message; none may end the stream."""
    psql(dsn, TABLE)
    report = {"format": 1, "token": "", "xid": 3, "event": "describe", "tag": "ALTER TABLE"}
    table = {"relation_id": 1, "namespace": "public", "name": "t"}
    damaged = [
        report | {"table": table | {"identity": "z"}},
        report | {"table": table | {"relation_id": 1 << 63}},
        report | {"table": table, "xid": 1 << 40},
        report | {"table": table | {"name": "t\0"}},
        report,
    ]
    messages = [
        f"select pg_logical_emit_message(true, 'pgstream.ddl', '{json.dumps(content)}')"
        for content in damaged
    ]
    capture = transaction(dsn, ROWS.format(1, 2_000), *messages, "insert into t values (0, 'x')")
    assert shown(capture) == ["insert"] * 2_001


@pytest.mark.majors(since=17)
def test_ddl_without_event_triggers_is_noticed_in_the_catalog(dsn: str) -> None:
    """A superuser may turn them off for a session, by `event_triggers`."""
    psql(dsn, TABLE)
    capture = landed(
        dsn,
        "insert into t values (1, 'a')",
        "set event_triggers = off; alter table t drop column x, add column x text",
        "insert into t values (2, 'b')",
    )
    gaps = [c for c in capture.log.changes if c.position.ordinal == GAP_ORDINAL]
    newest = next(schema for _, schema in capture.log.schemas.values())
    assert gaps or newest.attnums["x"] == 3


def test_columns_that_are_not_published_are_not_in_the_log(dsn: str) -> None:
    psql(dsn, TABLE)
    capture = Capture(dsn, reports_ddl=True, tables=["public.t"])
    psql(dsn, f"alter publication {capture.publication} set table t (id, x)")
    with capture:
        psql(dsn, "alter table t add column secret text default 'hunter2'")
        capture.catch_up()
    [row] = [c for c in capture.log.changes if c.op is Op.DDL]
    columns = json.loads(row.payload or "")["table"]["columns"]
    assert [column["name"] for column in columns] == ["id", "x"]
