"""
Catalog rows of transactions that overlapped: their ids say which began to write first.

Which ended first is known where the server keeps the times of commits.
"""

from __future__ import annotations

import psycopg
import pytest

from pgstream_dagster.schema.table import ReplicaIdentity
from pgstream_dagster.source import catalog, publication
from pgstream_dagster.source.connect import connect
from pgstream_dagster.wire.pgoutput import Relation, RelationColumn
from tests.support.plugins.cluster import OwnServer, psql


@pytest.fixture
def dsn(own_postgres: OwnServer) -> str:
    own_postgres.settings["track_commit_timestamp"] = "on"
    own_postgres.restart()
    psql(
        own_postgres.dsn,
        "create type mood as enum ('sad')",
        "create table other (id int)",
        "create table t (id int primary key, b int)",
        "create publication p for all tables",
    )
    return own_postgres.dsn


def oid(dsn: str) -> int:
    return psql(dsn, "select 't'::regclass::oid::bigint")[0][0]


def late_columns(dsn: str) -> tuple[str, ...]:
    with connect(dsn) as connection:
        return publication.versions(connection, "p", [oid(dsn)])[oid(dsn)].late_columns


def test_a_type_changed_by_the_transaction_that_began_first_and_ended_last_is_late(
    dsn: str,
) -> None:
    with psycopg.connect(dsn) as first:
        first.execute("insert into other values (1)")
        psql(dsn, "alter table t add m mood")
        assert late_columns(dsn) == ()
        first.execute("alter type mood rename value 'sad' to 'bad'")
    assert late_columns(dsn) == ("column 3",)


def test_a_type_changed_after_the_savepoint_that_added_the_column_is_late(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into other values (1)")
        with connection.transaction():
            connection.execute("alter table t add m mood")
        connection.execute("alter type mood rename value 'sad' to 'bad'")
    assert late_columns(dsn) == ("column 3",)


def test_a_type_of_before_is_not_late(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("alter type mood rename value 'sad' to 'bad'")
        with connection.transaction():
            connection.execute("alter table t add m mood")
    assert late_columns(dsn) == ()


def test_a_column_made_by_the_transaction_that_began_first_and_ended_last_is_uncertain(
    dsn: str,
) -> None:
    with connect(dsn) as connection:
        previous = catalog.describe(connection, 1, oid(dsn))
        with psycopg.connect(dsn) as first:
            first.execute("insert into other values (1)")
            with psycopg.connect(dsn) as second:
                second.execute("alter table t rename b to c")
                [(xid,)] = second.execute("select pg_current_xact_id()::xid::text::bigint")
            first.execute("alter table t drop c, add c int")
        columns = tuple(RelationColumn(name, 23, -1, in_key=name == "id") for name in ("id", "c"))
        renamed = Relation(oid(dsn), "public", "t", ReplicaIdentity.DEFAULT, columns)
        assert not catalog.resolve(connection, 1, renamed, previous, xid=xid).certain
