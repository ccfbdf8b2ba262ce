"""The same server, or another: told by the server, in every way it can be another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.errors import OtherSystem, SourceBehind, StandbyBehind, TimelineForked
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.identity import check_same, fork_lsn, identify
from tests.support.plugins.cluster import OwnServer, psql


def now(dsn: str) -> Lsn:
    return Lsn.parse(psql(dsn, "select pg_current_wal_flush_lsn()::text")[0][0])


def test_the_same_server_is_the_same(dsn: str) -> None:
    recorded = identify(dsn)
    assert check_same(dsn, recorded, now(dsn)) == recorded


def test_another_cluster_is_another_system(dsn: str, own_postgres: OwnServer) -> None:
    recorded = identify(dsn)
    with pytest.raises(OtherSystem, match="the system identifier is"):
        check_same(own_postgres.dsn, recorded, Lsn(0))


def test_another_database_is_another_system(dsn: str) -> None:
    recorded = identify(dsn)
    with pytest.raises(OtherSystem, match="the database is postgres"):
        check_same(make_conninfo(dsn, dbname="postgres"), recorded, Lsn(0))


def test_a_server_put_back_to_an_earlier_state_is_refused(dsn: str) -> None:
    recorded = identify(dsn)
    with pytest.raises(SourceBehind, match="put back to an earlier state"):
        check_same(dsn, recorded, Lsn(now(dsn) + (1 << 40)))


def test_a_timeline_that_is_no_descendant_is_a_fork(dsn: str) -> None:
    recorded = replace(identify(dsn), timeline=7)
    with pytest.raises(TimelineForked):
        check_same(dsn, recorded, Lsn(0))


def test_a_promotion_after_the_watermark_is_the_same_source(own_postgres: OwnServer) -> None:
    recorded, before = identify(own_postgres.dsn), now(own_postgres.dsn)
    promote(own_postgres)
    current = check_same(own_postgres.dsn, recorded, before)
    assert current.timeline == recorded.timeline + 1


def test_a_promotion_is_the_same_source_for_ever_once_its_timeline_is_recorded(
    own_postgres: OwnServer,
) -> None:
    recorded, before = identify(own_postgres.dsn), now(own_postgres.dsn)
    promote(own_postgres)
    current = check_same(own_postgres.dsn, recorded, before)
    psql(own_postgres.dsn, "create table t ()")
    assert check_same(own_postgres.dsn, current, now(own_postgres.dsn)) == current


def test_a_watermark_past_a_promotion_that_was_never_recorded_is_of_the_timeline_left_behind(
    own_postgres: OwnServer,
) -> None:
    recorded = identify(own_postgres.dsn)
    promote(own_postgres)
    psql(own_postgres.dsn, "create table t ()")
    with pytest.raises(TimelineForked, match="run 'pgstream resnapshot'"):
        check_same(own_postgres.dsn, recorded, now(own_postgres.dsn))


def test_a_standby_that_has_not_replayed_the_watermark_is_waited_for(
    own_postgres: OwnServer,
) -> None:
    recorded, watermark = identify(own_postgres.dsn), now(own_postgres.dsn)
    signal = standby_signal(own_postgres)
    own_postgres.stop()
    signal.touch()
    own_postgres.start()
    with pytest.raises(StandbyBehind):
        check_same(own_postgres.dsn, recorded, Lsn(watermark + (1 << 40)))


def promote(server: OwnServer) -> None:
    """Let the server end a recovery: it continues with a new timeline."""
    signal = standby_signal(server)
    server.stop()
    signal.touch()
    server.start()
    psql(server.dsn, "select pg_promote()")


def standby_signal(server: OwnServer) -> Path:
    return Path(psql(server.dsn, "show data_directory")[0][0], "standby.signal")


HISTORY = "1\t0/3000060\tno recovery target specified\n\n2\t0/5000000\tbefore 2024-01-01\n"


@pytest.mark.parametrize(
    ("timeline", "forked_at"), [(1, Lsn(0x3000060)), (2, Lsn(0x5000000)), (3, None), (0, None)]
)
def test_a_history_says_where_each_timeline_was_left(timeline: int, forked_at: Lsn | None) -> None:
    assert fork_lsn(HISTORY, timeline) == forked_at
