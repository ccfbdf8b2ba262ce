"""The subscriptions of postgres-stream: from its table, in both places, or from a file. P77."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from pgstream_dagster.errors import OutboxOccupied, SubscriptionsUnreadable
from pgstream_dagster.outbox.importer import from_database, from_file, import_subscriptions
from pgstream_dagster.outbox.install import install
from pgstream_dagster.source.connect import connect
from tests.support.plugins.cluster import psql

ID = "018cc251-f400-7000-8000-00000000000{}"

TABLE = (
    "create type {0}.operation_type as enum ('INSERT', 'UPDATE', 'DELETE')",
    (
        "create table {0}.subscriptions (id uuid primary key, key text not null, stream_id bigint,"
        " operation {0}.operation_type not null, schema_name text not null,"
        " table_name text not null,"
        " when_clause text, column_names text[] not null, metadata jsonb,"
        " payload_extensions jsonb default '[]', metadata_extensions jsonb default '[]')"
    ),
    (
        f"insert into {{0}}.subscriptions values ('{ID.format(1)}', 'k', 7, 'INSERT', 'public',"
        " 't', 'new.a > 1', '{{id}}', '{{\"m\": 1}}',"
        ' \'[{{"json_path": "x", "expression": "new.a"}}]\', \'[]\')'
    ),
    (
        f"insert into {{0}}.subscriptions values ('{ID.format(2)}', 'bad', 7, 'INSERT', 'public',"
        " 't', 'own(new.a)', '{{id}}')"
    ),
    (
        f"insert into {{0}}.subscriptions values ('{ID.format(3)}', 'none', null, 'INSERT',"
        " 'public', 't', null, '{{id}}')"
    ),
)


def theirs(dsn: str, schema: str) -> None:
    psql(dsn, f"create schema if not exists {schema}", *(s.format(schema) for s in TABLE))


def imported(outbox, rows):
    with closing(connect(outbox.dsn)) as session:
        return import_subscriptions(session, rows)


def check_import(outbox, rows) -> None:
    done = imported(outbox, rows)
    assert (done.imported, done.existing) == (1, 0)
    assert [(r.key, r.table, r.operation) for r in done.refused] == [
        ("bad", "public.t", "INSERT"),
        ("none", "public.t", "INSERT"),
    ]
    assert "own(integer) does not exist" in done.refused[0].reason
    assert "no stream_id" in done.refused[1].reason
    [row] = outbox.run("select id, stream_id from pgstream.subscriptions")
    assert row == {"id": uuid.UUID(ID.format(1)), "stream_id": 7}
    functions = outbox.functions()
    assert imported(outbox, rows).existing == 1
    assert outbox.functions() == functions
    outbox.run("insert into t (a) values (1), (2)")
    [event] = outbox.events()
    assert (event["payload"]["new"], event["payload"]["x"]) == ({"id": 2}, 2)
    assert event["metadata"] == {"m": 1}


def test_subscriptions_of_their_schema_keep_their_ids(outbox) -> None:
    theirs(outbox.dsn, "pgstream_subscriptions")
    try:
        check_import(outbox, from_database(outbox.dsn))
    finally:
        psql(outbox.dsn, "drop schema pgstream_subscriptions cascade")


def test_install_is_refused_before_the_move_and_the_file_is_imported_after(
    dsn, outbox, tmp_path: Path
) -> None:
    """P77."""
    theirs(dsn, "pgstream")
    with closing(connect(dsn)) as session, pytest.raises(OutboxOccupied):
        install(session)
    rows = from_database(dsn)
    assert len(rows) == 3
    file = tmp_path / "subscriptions.json"
    file.write_text(json.dumps(rows))
    check_import(outbox, from_file(file))


def test_csv_of_their_table_is_read(outbox, tmp_path: Path) -> None:
    theirs(outbox.dsn, "pgstream_subscriptions")
    file = tmp_path / "subscriptions.csv"
    copy = "copy pgstream_subscriptions.subscriptions to stdout with (format csv, header)"
    with outbox.session.cursor() as cursor, cursor.copy(copy) as out:
        file.write_bytes(b"".join(bytes(data) for data in out))
    psql(outbox.dsn, "drop schema pgstream_subscriptions cascade")
    check_import(outbox, from_file(file))


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[1]"])
def test_other_file_is_refused(tmp_path: Path, content) -> None:
    file = tmp_path / "subscriptions.json"
    file.write_text(content)
    with pytest.raises(SubscriptionsUnreadable, match=r"subscriptions\.json"):
        from_file(file)
    with pytest.raises(SubscriptionsUnreadable):
        from_file(tmp_path / "nothing.json")


def test_database_without_their_table_is_refused(dsn) -> None:
    with pytest.raises(SubscriptionsUnreadable, match=r"pgstream_subscriptions\.subscriptions"):
        from_database(dsn)
