"""Changes made by hand, applied to a real target: what its tables hold afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pgstream_dagster.errors import SinkRefused, SinkUnreachable, TargetSchemaDiffers
from pgstream_dagster.sinks.base import NotNow, Refused
from pgstream_dagster.sinks.postgres import PostgresSink, Target
from tests.support.harness.sink_changes import History, batch, delivered, version
from tests.support.plugins.cluster import Server, psql

ITEMS = version("items", {"id": "integer", "name": "text", "note": "text"})
LOG = version("log", {"a": "text", "b": "jsonb"}, key=(), relation_id=16_500)


def target_of(dsn: str, **fields: Any) -> Target:
    return Target("shop", "replica", dsn, **fields)


@contextmanager
def opened(dsn: str, **fields: Any) -> Iterator[PostgresSink]:
    with closing(PostgresSink(target_of(dsn, **fields))) as sink:
        sink.open()
        yield sink


@pytest.fixture
def sink(dsn: str) -> Iterator[PostgresSink]:
    psql(dsn, "create table items (id int primary key, name text, note text)")
    psql(dsn, "create table log (a text, b jsonb)")
    with opened(dsn) as sink:
        yield sink


def items(dsn: str) -> list[tuple[Any, ...]]:
    return psql(dsn, "select * from items order by id")


def test_rows_are_inserted_updated_and_deleted_in_one_transaction(
    dsn: str, sink: PostgresSink
) -> None:
    h = History()
    changes = [h.insert(ITEMS, id=str(n), name=f"n{n}", note=None) for n in range(5)]
    changes.append(h.update(ITEMS, id="1", name="one", note=""))
    changes.append(h.delete(ITEMS, id="2"))
    assert sink.deliver(batch(*changes)) == {}
    assert items(dsn) == [
        (0, "n0", None),
        (1, "one", ""),
        (3, "n3", None),
        (4, "n4", None),
    ]
    assert sink.deliver(batch(h.update(ITEMS, id="3", name="x"), h.delete(ITEMS, id="4"))) == {}
    assert items(dsn) == [(0, "n0", None), (1, "one", ""), (3, "x", None)]


def test_a_column_that_was_not_sent_stays_as_it_is(dsn: str, sink: PostgresSink) -> None:
    h = History()
    sink.deliver(batch(h.insert(ITEMS, id="1", name="a", note="long")))
    sink.deliver(batch(h.update(ITEMS, id="1", name="b"), h.update(ITEMS, id="1", name="c")))
    assert items(dsn) == [(1, "c", "long")]


def test_rows_exchange_their_keys_in_one_transaction(dsn: str, sink: PostgresSink) -> None:
    h = History()
    sink.deliver(batch(*(h.insert(ITEMS, id=str(n), name=f"n{n}", note=f"t{n}") for n in (1, 2))))
    moves = [(("1",), "-1", "n1"), (("2",), "1", "n2"), (("-1",), "2", "n1")]
    changes = [h.update(ITEMS, old, id=new, name=name) for old, new, name in moves]
    assert sink.deliver(batch(*changes)) == {}
    assert items(dsn) == [(1, "n2", "t2"), (2, "n1", "t1")]


def test_unique_values_are_exchanged_by_way_of_a_third(dsn: str, sink: PostgresSink) -> None:
    h = History()
    psql(dsn, "create unique index on items (name)")
    sink.deliver(batch(*(h.insert(ITEMS, id=str(n), name=f"n{n}", note="") for n in range(9))))
    steps = [("1", "tmp"), ("2", "n1"), ("1", "n2"), ("5", "fine")]
    changes = [h.update(ITEMS, id=number, name=name, note="") for number, name in steps]
    assert sink.deliver(batch(*changes)) == {}
    names = dict(psql(dsn, "select id, name from items where id in (1, 2, 5)"))
    assert names == {1: "n2", 2: "n1", 5: "fine"}


def test_a_table_without_a_key_keeps_the_number_of_equal_rows(dsn: str, sink: PostgresSink) -> None:
    h = History()
    row = {"a": None, "b": '{"x": 1}'}
    sink.deliver(batch(*(h.insert(LOG, **row) for _ in range(3)), h.insert(LOG, a="z", b=None)))
    sink.deliver(
        batch(
            h.delete(LOG, **row),
            h.update(LOG, before={"a": "z", "b": None}, a="y"),
        )
    )
    found_rows = psql(dsn, "select a, b from log order by a nulls first")
    assert found_rows == [(None, {"x": 1}), (None, {"x": 1}), ("y", None)]


def test_many_rows_of_a_key_of_two_columns_are_deleted_at_once(dsn: str) -> None:
    psql(dsn, "create table parts (a int, b text, primary key (a, b))")
    parts = version("parts", {"a": "integer", "b": "text"}, key=("a", "b"))
    h = History()
    with opened(dsn) as sink:
        rows = [{"a": str(n // 7), "b": f"part {n}"} for n in range(20_000)]
        assert sink.deliver(batch(*(h.insert(parts, **row) for row in rows))) == {}
        assert sink.deliver(batch(*(h.delete(parts, **row) for row in rows[1:]))) == {}
    assert psql(dsn, "select * from parts") == [(0, "part 0")]


def test_a_keyless_change_without_its_old_row_is_left_out_and_holds_nothing_up(
    dsn: str, sink: PostgresSink, caplog: pytest.LogCaptureFixture
) -> None:
    h = History()
    sink.deliver(batch(h.insert(LOG, a="1", b=None), h.insert(LOG, a="2", b=None)))
    changes = [h.insert(LOG, a="3", b=None), h.delete(LOG), h.update(LOG, a="4", b=None)]
    assert sink.deliver(batch(*changes, h.delete(LOG, a="1", b=None))) == {}
    assert psql(dsn, "select a from log order by a") == [("2",), ("3",)]
    assert "2 changes of public.log name no row" in caplog.text
    assert "alter table public.log replica identity full" in caplog.text


def test_as_many_rows_without_columns_are_deleted_as_on_the_source(dsn: str) -> None:
    h, empty = History(), version("nothing", {}, key=())
    with opened(dsn) as sink:
        assert sink.deliver(batch(*(h.insert(empty) for _ in range(5)))) == {}
        assert (
            sink.deliver(batch(h.delete(empty), h.delete(empty), h.update(empty, before={}))) == {}
        )
        assert psql(dsn, "select count(*) from nothing") == [(3,)]
        assert list(delivered(sink, batch(*(h.delete(empty) for _ in range(4))))) == [3]
    assert psql(dsn, "select count(*) from nothing") == [(0,)]


def test_one_bad_row_is_refused_and_the_rest_of_its_transaction_is_applied(
    dsn: str, sink: PostgresSink
) -> None:
    h = History()
    changes = [h.insert(ITEMS, id=str(n), name=f"n{n}", note="") for n in range(100)]
    changes[37] = h.insert(ITEMS, id="secret", name="x", note="")
    assert len(sink.deliver(batch(*changes, cursor="6"))) == 1
    assert items(dsn) == []
    verdicts = delivered(sink, batch(*changes, cursor="7"))
    assert list(verdicts) == [37]
    refused = verdicts[37]
    assert isinstance(refused, Refused)
    assert "22P02" in refused.reason
    assert "secret" not in refused.reason
    assert len(items(dsn)) == 99
    assert psql(dsn, "select cursor from pgstream.sink_progress") == [("7",)]


def test_later_changes_of_a_refused_key_wait(dsn: str, sink: PostgresSink) -> None:
    h = History()
    psql(dsn, "alter table items add check (name <> 'bad')")
    verdicts = delivered(
        sink,
        batch(
            h.insert(ITEMS, id="1", name="bad", note=""),
            h.insert(ITEMS, id="2", name="ok", note=""),
            h.update(ITEMS, id="1", note="later"),
            h.update(ITEMS, ("1",), id="3", note="moved"),
            h.update(ITEMS, id="3", note="last"),
        ),
    )
    assert {index: type(verdict) for index, verdict in verdicts.items()} == {
        0: Refused,
        2: NotNow,
        3: NotNow,
        4: NotNow,
    }
    assert items(dsn) == [(2, "ok", "")]


def test_a_truncate_waits_behind_a_refused_change_of_its_table(
    dsn: str, sink: PostgresSink
) -> None:
    h = History()
    psql(dsn, "alter table items add check (name <> 'bad')")
    changes = (
        h.insert(ITEMS, id="1", name="bad", note=""),
        h.insert(LOG, a="other table", b=None),
        h.truncate(ITEMS),
        h.insert(ITEMS, id="2", name="ok", note=""),
    )
    verdicts = delivered(sink, batch(*changes))
    assert {index: type(verdict) for index, verdict in verdicts.items()} == {
        0: Refused,
        2: NotNow,
        3: NotNow,
    }
    assert items(dsn) == []
    assert psql(dsn, "select a from log") == [("other table",)]


def test_changes_of_a_table_without_a_key_wait_behind_a_refused_one(
    dsn: str, sink: PostgresSink
) -> None:
    h = History()
    refused = h.insert(LOG, a="1", b="no json")
    changes = (h.insert(LOG, a="0", b=None), refused, h.insert(LOG, a="2", b=None))
    verdicts = delivered(sink, batch(*changes))
    assert {index: type(verdict) for index, verdict in verdicts.items()} == {1: Refused, 2: NotNow}
    assert psql(dsn, "select a from log") == [("0",)]


@pytest.mark.parametrize(
    ("on_conflict", "name", "is_refused"),
    [("error", "theirs", True), ("nothing", "theirs", False), ("update", "ours", False)],
)
def test_a_key_that_the_target_has_is_handled_as_configured(
    dsn: str, on_conflict: str, name: str, is_refused: bool
) -> None:
    h = History()
    psql(dsn, "create table items (id int primary key, name text, note text)")
    psql(dsn, "insert into items values (1, 'theirs')")
    with opened(dsn, on_conflict=on_conflict) as sink:
        changes = [h.insert(ITEMS, id=str(n), name="ours", note="") for n in (1, 2)]
        assert bool(delivered(sink, batch(*changes))) is is_refused
    assert [row[1] for row in items(dsn)] == [name, "ours"]


def test_an_update_of_a_row_that_the_target_lacks_is_refused(dsn: str, sink: PostgresSink) -> None:
    h = History()
    sink.deliver(batch(h.insert(ITEMS, id="1", name="a", note="")))
    changes = [h.update(ITEMS, id=n, name="b", note="") for n in ("1", "2")]
    assert list(delivered(sink, batch(*changes))) == [1]
    assert items(dsn) == [(1, "b", "")]


@pytest.mark.parametrize(("note", "is_refused"), [({"note": ""}, False), ({}, True)])
def test_an_update_of_a_missing_row_inserts_it_if_all_its_columns_were_sent(
    dsn: str, note: dict[str, str], is_refused: bool
) -> None:
    h = History()
    psql(dsn, "create table items (id int primary key, name text, note text, mine int default 7)")
    with opened(dsn, on_conflict="update", creates_tables=False) as sink:
        changes = [h.update(ITEMS, id="1", name="b", **note)]
        assert bool(delivered(sink, batch(*changes))) is is_refused
    assert items(dsn) == ([] if is_refused else [(1, "b", "", 7)])


def test_a_column_that_the_target_generates_need_not_be_sent(dsn: str) -> None:
    h = History()
    columns = "id int primary key, name text, note text generated always as (name || '!') stored"
    psql(dsn, f"create table items ({columns})")
    with opened(dsn, on_conflict="update", creates_tables=False) as sink:
        assert not delivered(sink, batch(h.update(ITEMS, id="1", name="b")))
    assert items(dsn) == [(1, "b", "b!")]


@pytest.mark.parametrize(
    ("on_conflict", "is_refused", "rows"),
    [("error", True, []), ("nothing", False, []), ("update", False, [(1,)])],
)
def test_an_update_that_sets_nothing_is_of_a_row_that_exists(
    dsn: str, on_conflict: str, is_refused: bool, rows: list[tuple[int]]
) -> None:
    keys = version("keys", {"id": "integer"}, relation_id=16_600)
    psql(dsn, "create table keys (id int primary key)")
    with opened(dsn, on_conflict=on_conflict) as sink:
        verdicts = delivered(sink, batch(History().update(keys, id="1")))
    assert bool(verdicts) is is_refused
    assert psql(dsn, "select * from keys") == rows


def test_a_large_transaction_shows_when_it_ends(dsn: str, sink: PostgresSink) -> None:
    h = History()
    for part in range(3):
        rows = [h.insert(ITEMS, id=str(part * 10 + n), name="", note="") for n in range(10)]
        rows.append(h.update(ITEMS, id=str(part * 10), name="u", note=""))
        sink.deliver(batch(*rows, cursor=str(part), ends=part == 2))
        assert len(items(dsn)) == (30 if part == 2 else 0)
    assert psql(dsn, "select cursor from pgstream.sink_progress") == [("2",)]


def test_a_refused_change_of_a_large_transaction_leaves_its_other_parts(
    dsn: str, sink: PostgresSink
) -> None:
    h = History()
    assert not sink.deliver(batch(h.insert(ITEMS, id="1", name="", note=""), ends=False))
    changes = [h.insert(ITEMS, id=n, name="", note="") for n in ("2", "x", "3")]
    assert list(delivered(sink, batch(*changes, ends=False))) == [1]
    assert items(dsn) == []
    assert not sink.deliver(batch(cursor="9"))
    assert [row[0] for row in items(dsn)] == [1, 2, 3]


def test_an_open_transaction_is_gone_when_the_sink_closes(dsn: str, sink: PostgresSink) -> None:
    h = History()
    sink.deliver(batch(h.insert(ITEMS, id="1", name="", note=""), cursor="1"))
    sink.deliver(batch(h.insert(ITEMS, id="2", name="", note=""), cursor="2", ends=False))
    assert sink.open() == "1"
    assert items(dsn) == [(1, "", "")]


def test_tables_with_foreign_keys_are_truncated_together(dsn: str) -> None:
    psql(
        dsn,
        "create table parents (id int primary key)",
        "create table children (id int primary key, parent int references parents)",
        "create table others (id int primary key, parent int references parents)",
        "insert into parents values (1)",
        "insert into children values (1, 1)",
    )
    parents = version("parents", {"id": "integer"}, relation_id=1)
    children = version("children", {"id": "integer", "parent": "integer"}, relation_id=2)
    h = History()
    with opened(dsn) as sink:
        changes = [h.truncate(parents), h.truncate(children), h.insert(parents, id="2")]
        assert sink.deliver(batch(*changes)) == {}
    assert psql(dsn, "select id from parents") == [(2,)]
    assert psql(dsn, "select id from children") == []


def test_a_second_copy_empties_the_table_and_a_first_one_asks(dsn: str, sink: PostgresSink) -> None:
    h = History()
    psql(dsn, "insert into items values (9, 'theirs', '')")
    with pytest.raises(SinkRefused, match=r'truncate "public"\."items"'):
        sink.deliver(batch(h.copy(ITEMS), h.read(ITEMS, id="1", name="a", note="")))
    sink.open()
    with pytest.raises(SinkRefused, match="not of this sink"):
        sink.deliver(batch(h.read(ITEMS, id="1", name="a", note="")))
    psql(dsn, "truncate items")
    sink.open()
    sink.deliver(batch(h.copy(ITEMS), h.read(ITEMS, id="1", name="a", note="")))
    sink.deliver(batch(h.copy(ITEMS, "again"), h.read(ITEMS, id="2", name="b", note="")))
    assert items(dsn) == [(2, "b", "")]


def test_identity_values_are_kept_and_sequences_only_go_forward(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int generated always as identity primary key, n serial, v text,"
        " g text generated always as (v || '!') stored)",
    )
    schema = version("t", {"id": "integer", "n": "integer", "v": "text", "g": "text"})
    h = History()
    with opened(dsn) as sink:
        rows = [h.insert(schema, id=str(n), n=str(n * 10), v="a", g="a!") for n in (3, 1, 2)]
        assert sink.deliver(batch(*rows)) == {}
        changed = h.update(schema, id="2", n="20", v="b", g="b!")
        assert sink.deliver(batch(changed, h.delete(schema, id="3"))) == {}
    assert psql(dsn, "select * from t order by id") == [(1, 10, "a", "a!"), (2, 20, "b", "b!")]
    assert psql(dsn, "insert into t (v) values ('c') returning id, n") == [(4, 31)]
    psql(dsn, "select setval('t_id_seq', 100)")
    with opened(dsn) as sink:
        sink.deliver(batch(h.insert(schema, id="50", n="1", v="a")))
    assert psql(dsn, "select last_value from t_id_seq") == [(100,)]


def test_an_update_of_an_always_identity_names_the_statement(dsn: str) -> None:
    psql(dsn, "create table t (id int primary key, n int generated always as identity)")
    schema, h = version("t", {"id": "integer", "n": "integer"}), History()
    with opened(dsn) as sink:
        sink.deliver(batch(h.insert(schema, id="1", n="1")))
        with pytest.raises(TargetSchemaDiffers) as caught:
            sink.deliver(batch(h.update(schema, id="1", n="2")))
        psql(dsn, caught.value.statement)
        sink.open()
        assert sink.deliver(batch(h.update(schema, id="1", n="2"))) == {}
    assert psql(dsn, "select * from t") == [(1, 2)]


def test_values_of_many_types_arrive_as_they_were_sent(dsn: str) -> None:
    psql(
        dsn,
        "create type mood as enum ('low', 'high')",
        "create domain code as varchar(5) not null check (value <> 'no')",
        "create type pair as (a int, b text)",
        "create extension citext",
    )
    values: dict[str, tuple[str, str]] = {
        "n": ("numeric", "NaN"),
        "big": ("numeric(38,10)", "12345678901234567890.1234567891"),
        "f": ("double precision", "-Infinity"),
        "a": ("integer[]", "[0:1]={1,NULL}"),
        "m": ("mood", "high"),
        "ms": ("mood[]", "{low,NULL,high}"),
        "c": ("code", "abc"),
        "p": ("pair", '(1,"x ""y"", \\\\z")'),
        "b": ("bytea", "\\x00ff5c"),
        "j": ("jsonb", "null"),
        "js": ("json", '{"a":1234567890123456789,  "a":2}'),
        "i": ("interval", "1 year -2 days +03:04:05.678"),
        "t": ("timestamp with time zone", "infinity"),
        "bc": ("date", "0044-03-15 BC"),
        "r": ("tstzrange", '["2024-01-01 00:00:00+00",)'),
        "ir": ("int4range", "[1,5)"),
        "bits": ("bit(3)", "101"),
        "ch": ('"char"', "x"),
        "bp": ("character(4)", "ab  "),
        "text": ("text", "tab\tnew\nline \\N \\. \\ quote\" ' \r"),
        "empty": ("text", ""),
        "cash": ("money", "$1,234.50"),
        "ip": ("inet", "10.0.0.1/8"),
        "v": ("tsvector", "'a':1 'b':2A"),
        "x": ("xml", "<a>&lt;</a>"),
        "ci": ("public.citext", "MiXed"),
        "bool": ("boolean", "t"),
        "box": ("box", "(1,1),(0,0)"),
    }
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in values.items())
    psql(dsn, f"create table t (id int primary key, {columns})")
    schema = version("t", {"id": "integer", **{name: kind for name, (kind, _) in values.items()}})
    texts = {name: text for name, (_, text) in values.items()}
    h = History()
    with opened(dsn) as sink:
        assert sink.deliver(batch(h.insert(schema, id="1", **texts))) == {}
        nothing = dict.fromkeys(texts) | {"c": "x"}
        assert sink.deliver(batch(h.insert(schema, id="2", **nothing))) == {}
        assert sink.deliver(batch(h.update(schema, id="2", **texts))) == {}
    assert printed(dsn, "t", [*texts]) == [texts, texts]


def printed(dsn: str, table: str, names: list[str]) -> list[dict[str, str | None]]:
    """The rows of a table as the output functions print them."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in ("timezone = 'UTC'", "lc_monetary = 'C'", "extra_float_digits = 3"):
            connection.execute(f"set {setting}")
        listed = ", ".join(f'"{name}"' for name in names)
        result = connection.pgconn.exec_(f"select {listed} from {table} order by 1".encode())
        assert not result.error_message, result.error_message
        rows = [[result.get_value(row, n) for n in range(result.nfields)] for row in range(2)]
    return [
        dict(zip(names, [None if v is None else bytes(v).decode() for v in row], strict=True))
        for row in rows
    ]


def test_keys_are_compared_as_their_type_does(dsn: str) -> None:
    psql(
        dsn,
        "create extension citext",
        "create type mood as enum ('low', 'high')",
        "create domain dmood as mood",
        "create table t (a citext, m mood, d dmood, n numeric, primary key (a, m, d, n))",
    )
    columns = {"a": "public.citext", "m": "public.mood", "d": "public.dmood", "n": "numeric"}
    schema, h = version("t", columns, key=("a", "m", "d", "n")), History()
    with opened(dsn) as sink:
        rows = [h.insert(schema, a=a, m="low", d="high", n="NaN") for a in ("A", "B")]
        assert sink.deliver(batch(*rows)) == {}
        assert sink.deliver(batch(h.delete(schema, a="A", m="low", d="high", n="NaN"))) == {}
    assert psql(dsn, "select a from t") == [("B",)]


def test_two_processes_never_both_write(dsn: str, sink: PostgresSink) -> None:
    second = PostgresSink(target_of(dsn))
    with pytest.raises(SinkUnreachable, match="pgstream sink replica"):
        second.open()
    sink.close()
    assert second.open() is None
    second.close()


def test_a_missing_right_names_the_grant(dsn: str, sink: PostgresSink) -> None:
    psql(dsn, "drop role if exists poor", "create role poor login")
    try:
        psql(dsn, "grant all on schema pgstream to poor", "grant usage on schema public to poor")
        psql(dsn, "grant all on all tables in schema pgstream to poor")
        sink.close()
        h = History()
        needed = 'grant select, insert, update, delete, truncate on "public"."items" to "poor"'
        with opened(f"{dsn} user=poor") as poor, pytest.raises(SinkRefused, match=needed):
            poor.deliver(batch(h.insert(ITEMS, id="1", name="", note="")))
    finally:
        psql(dsn, "drop owned by poor", "drop role poor")


def test_with_foreign_keys_on_the_order_of_the_source_is_kept(dsn: str) -> None:
    psql(
        dsn,
        "drop role if exists plain",
        "create role plain login",
        f"grant create on database {dsn_name(dsn)} to plain",
        "grant create on schema public to plain",
        "set role plain; create table parents (id int primary key, first int);"
        " create table children (id int primary key, parent int not null references parents);"
        " alter table parents add foreign key (first) references children"
        " deferrable initially deferred",
    )
    parents = version("parents", {"id": "integer", "first": "integer"}, relation_id=1)
    children = version("children", {"id": "integer", "parent": "integer"}, relation_id=2)
    h = History()
    try:
        with opened(f"{dsn} user=plain") as sink:
            changes = [h.insert(parents, id="1", first="1"), h.insert(children, id="1", parent="1")]
            changes += [
                h.insert(parents, id="2", first=None),
                h.insert(children, id="2", parent="2"),
            ]
            assert sink.deliver(batch(*changes)) == {}
            h.end()
            bad = [h.insert(parents, id="3", first=None), h.insert(children, id="3", parent="9")]
            h.end()
            good = [h.delete(children, id="2"), h.delete(parents, id="2")]
            assert list(delivered(sink, batch(*bad, *good))) == [1]
        assert psql(dsn, "select id from parents order by id") == [(1,), (3,)]
        assert psql(dsn, "select id from children") == [(1,)]
    finally:
        psql(dsn, "drop owned by plain cascade", "drop role plain")


def dsn_name(dsn: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    return str(conninfo_to_dict(dsn)["dbname"])


def test_columns_are_added_dropped_renamed_and_retyped(dsn: str, sink: PostgresSink) -> None:
    h = History()
    sink.deliver(batch(h.insert(ITEMS, id="1", name="7", note="x")))
    first, second, third = ITEMS.columns
    added = replace(third, name='user "age"', attnum=4, type_name="integer", missing="18")
    swapped = replace(
        ITEMS,
        columns=(
            first,
            replace(second, name="note", type_name="bigint", type_oid=20),
            replace(third, name="name"),
            added,
        ),
    )
    row = {"id": "2", "note": "8", "name": "y", 'user "age"': "20"}
    assert sink.deliver(batch(h.insert(swapped, **row))) == {}
    assert psql(dsn, 'select id, name, note, "user ""age""" from items order by id') == [
        (1, "x", 7, 18),
        (2, "y", 8, 20),
    ]
    dropped = replace(swapped, columns=swapped.columns[:2], name="things")
    assert sink.deliver(batch(h.update(dropped, id="1", note="9"))) == {}
    assert psql(dsn, "select * from things order by id") == [(1, 9), (2, 8)]


KEYS = version("keys", {"id": "integer", "code": "text", "note": "text"})
BY_CODE = replace(KEYS, key=("code",))
KEYLESS = replace(KEYS, key=())


def key_of(dsn: str, table: str) -> list[str]:
    query = (
        "select pg_get_constraintdef(oid) from pg_constraint"
        f" where contype = 'p' and conrelid = '{table}'::regclass"
    )
    return [text for (text,) in psql(dsn, query)]


def test_a_key_that_moves_to_another_column_finds_the_rows_and_takes_new_ones(dsn: str) -> None:
    h = History()
    with opened(dsn) as sink:
        assert sink.deliver(batch(*(h.insert(KEYS, id=n, code=n, note="") for n in "12"))) == {}
        psql(dsn, "create table lines (id int references keys)")
        h.end()
        changes = [h.insert(BY_CODE, id="1", code="3", note="same id"), h.delete(BY_CODE, code="2")]
        assert sink.deliver(batch(*changes)) == {}
        assert key_of(dsn, "keys") == ["PRIMARY KEY (code)"]
        h.end()
        assert sink.deliver(batch(*(h.insert(KEYLESS, id="1", code="3") for _ in "12"))) == {}
        assert key_of(dsn, "keys") == []
    assert psql(dsn, "select id, code from keys order by code") == [(1, "1"), *[(1, "3")] * 3]


def test_a_key_that_rows_do_not_fit_yet_is_named_in_the_log(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    h = History()
    with opened(dsn) as sink:
        assert sink.deliver(batch(*(h.insert(KEYS, id=n, code="x", note="") for n in "12"))) == {}
        h.end()
        # The changes that gave the rows other codes are missing before a copy.
        changes = [h.copy(BY_CODE), *(h.read(BY_CODE, id=n, code=n, note="") for n in "12")]
        assert sink.deliver(batch(*changes)) == {}
    statement = 'alter table "public"."keys" add primary key ("code")'
    assert statement in "\n".join(caplog.messages)
    psql(dsn, statement)


def test_identity_columns_and_what_is_computed_from_a_column_follow_its_type(dsn: str) -> None:
    psql(
        dsn,
        "create table sums (id int generated always as identity primary key,"
        " n serial, a int default 3, more int generated always as (a + 1) stored,"
        " b int, twice int generated always as (b * 2) stored)",
    )
    before = version("sums", {"id": "integer", "n": "integer", "a": "integer", "b": "integer"})
    key, n, a, _ = before.columns
    wide = [replace(column, type_name="bigint", type_oid=20) for column in (key, n)]
    after = replace(before, columns=(*wide, replace(a, type_name="text", type_oid=25)))
    h = History()
    with opened(dsn) as sink:
        assert sink.deliver(batch(h.insert(before, id="1", n="1", a="1", b="1"))) == {}
        h.end()
        row = {"id": "30000000000", "n": "2", "a": "x"}
        assert sink.deliver(batch(h.insert(after, **row))) == {}
    psql(dsn, "insert into sums default values")
    assert psql(dsn, "select * from sums order by id") == [
        (1, 1, "1"),
        (30_000_000_000, 2, "x"),
        (30_000_000_001, 3, None),
    ]


def test_an_older_change_that_is_sent_again_leaves_the_newer_columns(
    dsn: str, sink: PostgresSink
) -> None:
    h = History()
    late = [h.insert(ITEMS, id="9", name="old", note="gone"), h.update(ITEMS, id="1", name="late")]
    sink.deliver(batch(h.insert(ITEMS, id="1", name="7", note="x")))
    h.end()
    first, second, third = ITEMS.columns
    added = replace(third, name="more", attnum=4)
    newer = replace(ITEMS, columns=(first, replace(second, name="title"), added))
    sink.deliver(batch(h.insert(newer, id="2", title="t", more="m"), cursor="2"))
    sink.open()
    assert sink.deliver(batch(*late, cursor="2")) == {}
    assert psql(dsn, "select id, title, more from items order by id") == [
        (1, "late", None),
        (2, "t", "m"),
        (9, "old", None),
    ]
    moved = replace(newer, key=("title",))
    h.end()
    sink.deliver(batch(h.insert(moved, id="3", title="u", more="m")))
    assert list(delivered(sink, batch(late[1]))) == [0]


def test_a_type_that_cannot_be_changed_names_the_statement(dsn: str, sink: PostgresSink) -> None:
    h = History()
    sink.deliver(batch(h.insert(ITEMS, id="1", name="a", note="x"), cursor="1"))
    first, second, third = ITEMS.columns
    other = replace(ITEMS, columns=(first, replace(second, type_name="point", type_oid=6), third))
    with pytest.raises(TargetSchemaDiffers) as caught:
        sink.deliver(batch(h.insert(other, id="2", name="(1,1)", note=""), cursor="2"))
    assert 'alter column "name" type point' in caught.value.statement
    assert sink.open() == "1"


def test_existing_tables_are_never_altered(dsn: str, postgres: Server) -> None:
    psql(dsn, "create table items (id int primary key, name text)")
    h = History()
    with opened(dsn, creates_tables=False) as sink:
        with pytest.raises(TargetSchemaDiffers) as caught:
            sink.deliver(batch(h.insert(ITEMS, id="1", name="a", note="x")))
        psql(dsn, caught.value.statement)
        sink.open()
        assert sink.deliver(batch(h.insert(ITEMS, id="1", name="a", note="x"))) == {}
    assert items(dsn) == [(1, "a", "x")]


def test_a_missing_table_is_created_from_the_log(dsn: str) -> None:
    h = History()
    with opened(dsn) as sink:
        sink.deliver(batch(h.insert(ITEMS, id="1", name="a", note="x")))
    assert items(dsn) == [(1, "a", "x")]


def test_a_restored_source_gives_its_tables_other_oids_and_their_columns_other_numbers(
    dsn: str,
) -> None:
    h = History()
    orders = version("orders", {"id": "integer", "gone": "text", "total": "numeric"})
    people = version("people", {"id": "integer", "email": "text"}, relation_id=16_401)
    with opened(dsn) as sink:
        first = h.insert(orders, id="1", gone="x", total="1"), h.insert(people, id="1", email="a")
        assert sink.deliver(batch(*first)) == {}
    h.end()
    # As pg_dump leaves them: dropped columns keep no number, and OIDs are given again.
    people = version("people", {"id": "integer", "email": "text", "age": "integer"}, epoch=2)
    orders = version("orders", {"id": "integer", "total": "bigint"}, relation_id=16_401, epoch=2)
    with opened(dsn) as sink:
        changes = h.copy(people), h.read(people, id="2", email="b", age="3")
        assert sink.deliver(batch(*changes)) == {}
        assert psql(dsn, "select id, total from orders") == [(1, 1)]
        assert sink.deliver(batch(h.copy(orders), h.read(orders, id="2", total="2"))) == {}
        h.end()
        assert sink.deliver(batch(h.update(orders, id="2", total="3"))) == {}
    assert psql(dsn, "select to_jsonb(p) from people p") == [({"id": 2, "email": "b", "age": 3},)]
    assert psql(dsn, "select to_jsonb(o) from orders o") == [({"id": 2, "total": 3},)]
    stored = "select epoch, version ->> 'name' from pgstream.sink_tables order by 2"
    assert psql(dsn, stored) == [(2, "orders"), (2, "people")]


def test_a_table_that_is_new_in_an_epoch_is_not_that_of_its_oid_before(dsn: str) -> None:
    h = History()
    with opened(dsn) as sink:
        orders = version("orders", {"id": "integer", "total": "numeric"})
        assert sink.deliver(batch(h.insert(orders, id="1", total="1"))) == {}
        h.end()
        events = version("events", {"id": "integer", "kind": "text"}, epoch=2)
        changes = h.copy(events), h.read(events, id="9", kind="k")
        assert sink.deliver(batch(*changes)) == {}
    assert psql(dsn, "select to_jsonb(o) from orders o") == [({"id": 1, "total": 1},)]
    assert psql(dsn, "select to_jsonb(e) from events e") == [({"id": 9, "kind": "k"},)]
