"""Marks: known to the server that has them and to no other, whatever its positions are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from psycopg.conninfo import make_conninfo

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source import mark
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.mark import Mark
from tests.support.plugins.cluster import OwnServer, psql

ROLE = "r_mark"


def made(dsn: str) -> Mark:
    with connect(dsn) as connection:
        new = mark.make(connection)
    assert new is not None
    return new


def test_a_mark_is_known_also_after_a_crash_and_read_back_from_the_ledger(
    own_postgres: OwnServer,
) -> None:
    before = made(own_postgres.dsn)
    own_postgres.kill()
    own_postgres.start()
    assert Mark.from_facts(before.facts) == before
    assert Counter(before.outcomes.values()) == {"committed": 16, "aborted": 16}
    flushed = psql(own_postgres.dsn, "select pg_current_wal_flush_lsn()::text")[0][0]
    assert before.lsn <= Lsn.parse(flushed)
    with connect(own_postgres.dsn) as connection:
        assert mark.has(connection, before)
        assert mark.difference(connection, before) is None


def test_a_role_without_rights_makes_and_knows_marks(dsn: str) -> None:
    [(database,)] = psql(dsn, "select current_database()")
    psql(dsn, f"create role {ROLE}_{database} login")
    try:
        ours = make_conninfo(dsn, user=f"{ROLE}_{database}")
        before = made(ours)
        with connect(ours) as connection:
            assert mark.has(connection, before)
    finally:
        psql(dsn, f"drop role {ROLE}_{database}")


def test_other_transactions_under_its_ids_are_not_the_mark(dsn: str) -> None:
    genuine = made(dsn)
    xid, outcome = next(iter(genuine.outcomes.items()))
    other = "aborted" if outcome == "committed" else "committed"
    with connect(dsn) as connection:
        another = replace(genuine, outcomes={**genuine.outcomes, xid: other})
        assert mark.difference(connection, another) == (xid, outcome)
        assert not mark.has(connection, another)
        future = replace(genuine, outcomes={max(genuine.outcomes) + (1 << 40): "aborted"})
        assert mark.difference(connection, future) == (max(future.outcomes), "future")
        assert not mark.has(connection, future)
