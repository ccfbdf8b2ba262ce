"""Tables with masked columns: nothing that the catalog says of them shows or refuses a value."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.modifiers import Modifiers
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.postgres import PostgresSink, Target
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.connect import connect
from tests.support.harness.sink_changes import History, batch
from tests.support.modifiers import KEY
from tests.support.plugins.cluster import psql

SOURCE = (
    (
        "create table people (id int primary key, email text not null default 'boss@corp.test'"
        " check (email like '%@%'), nick text unique, code serial, low int"
        " generated always as identity, age int default 5 check (age > 0), secret serial,"
        " parent text references people (nick), constraint differ check (nick <> email))"
    ),
    "create index on people (email)",
    "create index on people (lower(email))",
    "create index only_vip on people (age) where email = 'boss@corp.test'",
    "create table visits (id int primary key, nick text references people (nick))",
    (
        "create table parted (id int, region text, primary key (region, id))"
        " partition by list (region)"
    ),
    "create table parted_eu partition of parted for values in ('eu')",
    "create index on parted (id)",
    "create index on parted_eu (region)",
    "create table spans (id int, name text) partition by hash (lower(name))",
    "create table spans_0 partition of spans for values with (modulus 1, remainder 0)",
    "alter table spans replica identity full",
)

RULES = {
    "transform": {
        "public.people": {
            "email": {"name": "hash"},
            "nick": {"name": "literal_string", "literal": "same"},
            "code": {"name": "greenmask_integer", "min_value": 1, "max_value": 9},
            "low": {"name": "greenmask_integer", "min_value": 1, "max_value": 9},
        },
        "public.parted": {"region": {"name": "encrypted_aes_siv"}},
        "public.spans": {"name": {"name": "hash"}},
    },
    "drop": {"public.people": ["secret"]},
}


@contextmanager
def opened(
    target: str,
    source: str,
    modifiers: Modifiers | None = None,
    versions: Sequence[tuple[int, TableSchema]] = (),
    **fields: Any,
) -> Iterator[PostgresSink]:
    made = Target("shop", "replica", target, source_dsn=source, **fields)
    with closing(PostgresSink(made)) as sink:
        sink.make_tables_of(1, modifiers, lambda _: versions, lambda _: False)
        sink.open()
        yield sink


def described(dsn: str, table: str) -> TableSchema:
    [(oid,)] = psql(dsn, f"select '{table}'::regclass::oid::int8")
    with closing(connect(dsn)) as session:
        return describe(session, 1, oid)


def shown(dsn: str) -> str:
    """Everything that the target's catalog and our tables in it have as text."""
    queries = (
        "select table_name, column_name, column_default from information_schema.columns",
        "select conname, pg_get_constraintdef(oid) from pg_constraint",
        "select indexdef from pg_indexes",
        "select relname from pg_class",
        "select version::text from pgstream.sink_tables",
    )
    return repr([psql(dsn, query) for query in queries])


def test_a_masked_column_has_neither_default_nor_condition_in_the_target(
    dsn: str, replica: str, caplog: pytest.LogCaptureFixture
) -> None:
    psql(dsn, *SOURCE, "select nextval('people_code_seq')")
    config = ModifierConfig.model_validate(RULES)
    modifiers = Modifiers({"mask": config}, ["mask"], KEY)
    names = ("people", "visits", "parted", "spans")
    people, visits, parted, spans = (described(dsn, name) for name in names)
    h = History()
    row = {"email": "ann@corp.test", "code": "7", "low": "3", "age": "5", "secret": "1"}
    numbers = ("1", "2")
    changes = [
        h.copy(people),
        *(h.read(people, id=n, nick=f"n{n}", parent=f"n{n}", **row) for n in numbers),
        h.copy(visits),
        h.read(visits, id="1", nick="n1"),
        h.copy(parted),
        *(h.read(parted, id=n, region="eu") for n in numbers),
        h.copy(spans),
        *(h.read(spans, id=n, name="x") for n in numbers),
    ]
    masked = [change for change in map(modifiers.change, changes) if change is not None]
    with (
        caplog.at_level(logging.INFO, "pgstream_dagster.sinks"),
        opened(replica, dsn, modifiers) as sink,
    ):
        assert sink.deliver(batch(*masked)) == {}
    assert psql(replica, "select count(*), min(nick), min(age) from people") == [(2, "same", 5)]
    assert psql(replica, "select count(distinct region) from parted") == [(1,)]
    for text in (caplog.text, shown(replica)):
        assert "boss" not in text and "'eu'" not in text
    constraints = {
        name
        for (name,) in psql(
            replica,
            "select conname from pg_constraint where contype <> 'n'"
            " and connamespace = 'public'::regnamespace",
        )
    }
    assert constraints == {
        *("people_pkey", "people_age_check", "visits_pkey", "parted_pkey"),
    }
    for left_out in ("people_email_check", "differ", "people_nick_key", "visits_nick_fkey"):
        assert f"'{left_out}' of public." in caplog.text
    assert "is not made: modifiers mask column email, nick" in caplog.text
    indexes = [
        name
        for (name,) in psql(
            replica, "select indexname from pg_indexes where schemaname = 'public' order by 1"
        )
    ]
    assert indexes == [
        *("parted_id_idx", "parted_pkey", "people_email_idx", "people_pkey", "visits_pkey")
    ]
    nullable = (
        "select attname from pg_attribute where attrelid = 'people'::regclass and attnotnull"
        " and attnum > 0"
    )
    assert psql(replica, nullable) == [("id",)]
    assert psql(
        replica, "select relkind::text from pg_class where relname in ('parted', 'spans')"
    ) == [("r",), ("r",)]
    assert psql(replica, "select count(*) from pg_sequence") == [(0,)]


def test_what_is_masked_in_front_of_the_log_is_masked_in_what_the_catalog_says(
    dsn: str, replica: str, caplog: pytest.LogCaptureFixture
) -> None:
    psql(dsn, *SOURCE)
    people, visits = described(dsn, "people"), described(dsn, "visits")
    psql(dsn, "alter table people add later text default 'boss too'")
    columns = (replace(c, modified="x" * (c.name in {"email", "nick"})) for c in people.columns)
    people = replace(people, columns=tuple(replace(c, default=None) for c in columns))
    unknown = described(dsn, "people").columns[-1]
    newer = replace(
        people, columns=(*people.columns, replace(unknown, missing="m", default=None, modified="y"))
    )
    versions = [(1_000, people), (1_000, visits), (1_500, newer)]
    h = History()
    row = {"code": "7", "low": "3", "age": "5", "secret": "1", "parent": None}
    changes = [
        h.copy(people),
        *(h.read(people, id=n, email="x", nick="x", **row) for n in ("1", "2")),
    ]
    with (
        caplog.at_level(logging.INFO, "pgstream_dagster.sinks"),
        opened(replica, dsn, versions=versions, is_log_modified=True) as sink,
    ):
        assert sink.deliver(batch(*changes)) == {}
    assert "boss" not in caplog.text + shown(replica)
    assert psql(replica, "select count(*) from people") == [(2,)]
    # Nobody knows yet what of it may leave.
    assert psql(replica, "select to_regclass('parted'), to_regclass('visits')::text") == [
        (None, "visits")
    ]
