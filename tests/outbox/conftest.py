"""An outbox in a database of its own, and what its tests ask of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pgstream_dagster.outbox.install import install, uninstall
from pgstream_dagster.source.connect import connect
from tests.support.plugins.cluster import database, psql

STREAMS = "insert into pgstream.streams (id, name) values (1, 'one'), (2, 'two')"


class Outbox:
    """A database with the outbox; its owner's session is an application's, too."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.session = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self._names = itertools.count(1)

    def run(self, *statements: str, **values: Any) -> list[dict[str, Any]]:
        """Run statements; the rows of the last one."""
        for statement in statements:
            cursor = self.session.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str) -> Any:
        [row] = self.run(statement)
        return next(iter(row.values()))

    def subscribe(self, key: str = "k", operation: str = "INSERT", table: str = "t", **more: Any):
        """Add a subscription of stream 1 to a table of `public`."""
        row = {"key": key, "operation": operation, "table_name": table, "stream_id": 1} | more
        row.setdefault("schema_name", "public")
        for name in ("payload_extensions", "metadata_extensions", "metadata"):
            if isinstance(row.get(name), dict) and name != "metadata":
                row[name] = [{"json_path": p, "expression": e} for p, e in row[name].items()]
            if name in row and row[name] is not None:
                row[name] = psycopg.types.json.Jsonb(row[name])
        names = ", ".join(row)
        places = ", ".join(f"%({name})s" for name in row)
        self.run(f"insert into pgstream.subscriptions ({names}) values ({places})", **row)

    def events(self) -> list[dict[str, Any]]:
        """The events in the order in which they were written; they are removed."""
        rows = self.run(
            "select stream_id, payload, metadata, tableoid::regclass::text as part, ctid::text"
            " from pgstream.events order by created_at, ctid"
        )
        self.run("truncate pgstream.events")
        return rows

    def payloads(self) -> list[dict[str, Any]]:
        return [event["payload"] for event in self.events()]

    def triggers(self, table: str = "t") -> dict[str, str]:
        """The triggers of a table: name -> definition."""
        rows = self.run(
            "select tgname, pg_get_triggerdef(oid) as definition from pg_trigger"
            f" where tgrelid = '{table}'::regclass and not tgisinternal"
        )
        return {row["tgname"]: row["definition"] for row in rows}

    def functions(self) -> dict[str, int]:
        """The generated functions: name -> oid."""
        rows = self.run("select proname, oid from pg_proc where proname ~ '^capture_[0-9]'")
        return {row["proname"]: row["oid"] for row in rows}


@pytest.fixture(scope="module")
def installed(postgres) -> Iterator[str]:
    """A database of the module, with the outbox."""
    with database(postgres) as dsn:
        with closing(connect(dsn)) as session:
            install(session)
        yield dsn


@pytest.fixture
def outbox(installed) -> Iterator[Outbox]:
    """The outbox of the module, empty, and a table `t`; what a test makes in `public` goes."""
    psql(
        installed,
        "delete from pgstream.subscriptions",
        "delete from pgstream.streams",
        "truncate pgstream.events",
        STREAMS,
        "drop schema public cascade",
        "create schema public",
        "create table t (id serial primary key, a int, b text)",
    )
    made = Outbox(installed)
    with made.session:
        yield made


@pytest.fixture
def removed(dsn) -> Iterator[str]:
    """A database of the test alone; the outbox it may have is removed, or would fail the drop."""
    yield dsn
    with closing(connect(dsn)) as session:
        uninstall(session)
