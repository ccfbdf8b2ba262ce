"""Since when a stream relies on reports of DDL, as the ledger keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster.capture.reporting import ReportedSince
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source import schema_triggers
from pgstream_dagster.source.connect import Session, connect
from pgstream_dagster.source.query import current_lsn
from tests.support.plugins.cluster import psql

EPOCH = 1


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    with closing(connect(dsn)) as opened:
        yield opened


@pytest.fixture
def ledger(lake: Lake, gateway: JavaGateway) -> Iterator[Ledger]:
    with closing(Ledger(lake, gateway)) as opened:
        yield opened


@pytest.fixture
def since(session: Session, ledger: Ledger) -> ReportedSince:
    return ReportedSince(ledger, EPOCH, session)


def test_without_triggers_nothing_is_reported(since: ReportedSince) -> None:
    assert since.position() is None
    assert since.recorded() is None


def test_it_begins_once_every_transaction_from_before_has_ended(
    since: ReportedSince, session: Session, dsn: str
) -> None:
    """One that ran DDL while there were no triggers may commit later."""
    with psycopg.connect(dsn) as earlier:
        earlier.execute("create table t (id int)")
        assert not schema_triggers.install(session, "a").reason
        assert since.position() is None
        earlier.commit()
        ended = current_lsn(session)
    position = since.position()
    assert position is not None and position >= ended
    psql(dsn, "create table u (id int)")
    assert since.position() == since.recorded() == position


def test_it_begins_again_when_the_triggers_were_off_for_a_while(
    since: ReportedSince, session: Session, dsn: str
) -> None:
    assert not schema_triggers.install(session, "a").reason
    first = since.position()
    psql(dsn, "alter event trigger pgstream_schema_ddl disable")
    assert since.position() is None
    psql(dsn, "alter event trigger pgstream_schema_ddl enable always", "create table t (id int)")
    assert since.recorded() is None
    second = since.position()
    assert first is not None and second is not None and second > first


def test_it_begins_again_behind_a_command_that_was_not_reported(
    since: ReportedSince, session: Session
) -> None:
    assert not schema_triggers.install(session, "a").reason
    first = since.position()
    assert first is not None
    since.begin_again(Lsn(first + 100))
    assert since.position() == first + 100
    since.begin_again(first)  # of an earlier transaction, which arrives again
    assert since.position() == first + 100


def test_a_stream_does_not_take_over_what_another_epoch_had(
    ledger: Ledger, session: Session
) -> None:
    assert not schema_triggers.install(session, "a").reason
    assert ReportedSince(ledger, EPOCH, session).position() is not None
    assert ReportedSince(ledger, EPOCH + 1, session).recorded() is None
