"""The embedded server, as the demo and every other test rely on it."""

from __future__ import annotations

import psycopg

from tests.plugins.cluster import OwnServer, Server, psql


def test_shared_server_decodes_logically(postgres: Server, dsn: str) -> None:
    created = psql(
        dsn,
        "create table t (id int primary key)",
        "select pg_create_logical_replication_slot('s_embedded', 'pgoutput')",
        "insert into t values (1)",
        "select current_setting('wal_level'), current_setting('max_replication_slots')::int",
    )
    assert created == [("logical", 64)]
    assert psycopg.connect(dsn).info.server_version // 10_000 == postgres.major


def test_rows_outlive_a_crash_of_the_server(own_postgres: OwnServer) -> None:
    psql(own_postgres.dsn, "create table t (id int)", "insert into t values (1)")
    before = own_postgres.dsn
    own_postgres.kill()
    own_postgres.start()
    assert own_postgres.dsn == before
    assert psql(own_postgres.dsn, "select id from t") == [(1,)]
