"""Landing over a source that is a list and a log that is a list: order, bounds, exactly once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.changelog.land import (
    Arrival,
    DecodedBatch,
    Ended,
    FlushPolicy,
    Keepalive,
    Landing,
    after,
)
from pgstream_dagster.errors import ConnectionLost
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema

AT_ONCE = FlushPolicy(flush_seconds=0)
NEVER = FlushPolicy(flush_seconds=1e9, idle_advance_seconds=1e9)
START = Lsn(10)
SCHEMA = TableSchema(1, 16_400, "public", "t", ReplicaIdentity.DEFAULT, ())


# --- stand-ins ---------------------------------------------------------------------------------


class ListSource:
    """Gives what is in the list, then ends; an exception in the list is raised."""

    def __init__(self, *arrivals: Arrival | Exception | None) -> None:
        self.arrivals = list(arrivals)
        self.confirmed: list[Lsn] = []

    def take(self, timeout_seconds: float) -> Arrival | None:
        if not self.arrivals:
            return Ended()
        arrival = self.arrivals.pop(0)
        if isinstance(arrival, Exception):
            raise arrival
        return arrival

    def confirm(self, lsn: Lsn) -> None:
        self.confirmed.append(lsn)


@dataclass(frozen=True)
class Commit:
    version: int
    rows: int
    end_lsn: Lsn
    tables: tuple[list[tuple[int, int]], ...] = ()  # (end_lsn, ordinal)


@dataclass
class MemoryLog:
    """Keeps commits; one that fails while its tables are read leaves nothing."""

    watermark: Lsn = START
    commits: list[Commit] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def commit(self, tables: Iterable[pa.Table], end_lsn: Lsn) -> Commit:
        read = tuple(
            list(zip(t["end_lsn"].to_pylist(), t["ordinal"].to_pylist(), strict=True))
            for t in tables
        )
        return self._committed(Commit(len(self.commits), sum(map(len, read)), end_lsn, read))

    def advance(self, lsn: Lsn) -> Commit:
        return self._committed(Commit(len(self.commits), 0, lsn))

    def append(self, schemas: Sequence[tuple[TableSchema, Lsn]]) -> None:
        self.order.append("schema")

    def _committed(self, commit: Commit) -> Commit:
        assert commit.end_lsn > self.watermark, "a commit must move the watermark"
        self.watermark = commit.end_lsn
        self.commits.append(commit)
        self.order.append("commit")
        return commit

    @property
    def rows(self) -> list[tuple[int, int]]:
        return [row for commit in self.commits for table in commit.tables for row in table]


COMMITTED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def table(*rows: tuple[int, int], width: int = 0) -> pa.Table:
    """Rows of (end_lsn, ordinal)."""
    return pa.Table.from_pylist(
        [
            {
                "epoch": 1,
                "commit_lsn": e - 5,
                "end_lsn": e,
                "ordinal": o,
                "committed_at": COMMITTED_AT,
                "payload": "x" * width,
            }
            for e, o in rows
        ],
        CHANGES,
    )


def small(*end_lsns: int, schemas: tuple[tuple[TableSchema, Lsn], ...] = ()) -> DecodedBatch:
    """Whole transactions of two rows each."""
    rows = [(e, o) for e in end_lsns for o in (0, 1)]
    return DecodedBatch(table(*rows), Lsn(end_lsns[-1]), schemas=schemas)


def large(end_lsn: int, parts: int, rows: int = 2, width: int = 0) -> list[DecodedBatch]:
    """One transaction in parts."""
    bodies = [
        DecodedBatch(
            table(*((end_lsn, n * rows + o) for o in range(rows)), width=width),
            Lsn(end_lsn),
            ends=False,
        )
        for n in range(parts)
    ]
    return [*bodies, DecodedBatch(CHANGES.empty_table(), Lsn(end_lsn))]


def land(
    log: MemoryLog,
    *arrivals: Arrival | Exception | None,
    policy: FlushPolicy = AT_ONCE,
    until: Lsn | None = None,
) -> ListSource:
    source = ListSource(*arrivals)
    Landing(source, log, log, policy).run(until=until)
    return source


# --- when a commit is made --------------------------------------------------------------------


def test_a_quiet_source_is_landed_at_once() -> None:
    log = MemoryLog()
    source = land(log, small(20), policy=FlushPolicy(flush_seconds=3600))
    assert [c.end_lsn for c in log.commits] == [20]
    assert source.confirmed == [20]


def test_a_busy_source_is_landed_in_growing_batches() -> None:
    log = MemoryLog()
    first = Landing(ListSource(*(small(e) for e in range(20, 40))), log, log, NEVER)
    first._last_commit = 1e12  # a commit has just begun
    first.run()
    assert [c.end_lsn for c in log.commits] == [39]
    assert log.rows == [(e, o) for e in range(20, 40) for o in (0, 1)]


@pytest.mark.parametrize(
    "policy", [FlushPolicy(1e9, flush_rows=4), FlushPolicy(1e9, flush_bytes=1)]
)
def test_a_full_batch_does_not_wait_for_the_clock(policy: FlushPolicy) -> None:
    log = MemoryLog()
    landing = Landing(ListSource(small(20), small(21), small(22), small(23)), log, log, policy)
    landing._last_commit = 1e12
    landing.run()
    assert len(log.commits) >= 2
    assert len(log.rows) == 8


def test_schemas_are_durable_before_the_rows_that_name_them() -> None:
    log = MemoryLog()
    land(log, small(20, schemas=((SCHEMA, Lsn(15)),)), *large(30, 2))
    assert log.order[:2] == ["schema", "commit"]


def test_a_schema_inside_a_large_transaction_is_durable_before_its_commit() -> None:
    log = MemoryLog()
    first, second, end = large(30, 2)
    described = DecodedBatch(
        second.changes, second.end_lsn, ends=False, schemas=((SCHEMA, Lsn(25)),)
    )
    land(log, first, described, end)
    assert log.order == ["schema", "commit"]


# --- exactly once -----------------------------------------------------------------------------


def test_what_the_log_has_is_dropped_when_it_is_sent_again() -> None:
    log = MemoryLog(watermark=Lsn(21))
    land(log, small(20, 21, 22), small(23))
    assert [e for e, _ in log.rows] == [22, 22, 23, 23]


def test_a_large_transaction_that_the_log_has_is_dropped_whole() -> None:
    log = MemoryLog(watermark=Lsn(30))
    land(log, *large(30, 3), small(40))
    assert log.rows == [(40, 0), (40, 1)]


def test_what_is_sent_twice_on_one_connection_lands_once() -> None:
    log = MemoryLog()
    land(log, small(20), small(20, 21), *large(30, 2), *large(30, 2), small(30, 31), policy=NEVER)
    assert log.rows == [
        *((e, o) for e in (20, 21) for o in (0, 1)),
        *((30, o) for o in range(4)),
        *((31, o) for o in (0, 1)),
    ]


def test_a_large_transaction_is_one_commit_of_several_tables() -> None:
    log = MemoryLog()
    policy = FlushPolicy(flush_seconds=1e9, flush_rows=4)
    source = land(log, small(20), *large(30, 5), policy=policy)
    assert [(c.end_lsn, [len(t) for t in c.tables]) for c in log.commits] == [
        (20, [2]),
        (30, [4, 4, 2]),
    ]
    assert source.confirmed == [20, 30]


def test_memory_is_bounded_when_the_rows_of_a_large_transaction_are_large() -> None:
    log = MemoryLog()
    policy = FlushPolicy(flush_rows=1_000, flush_bytes=10_000)
    land(log, *large(30, 8, rows=1, width=9_000), policy=policy)
    [commit] = log.commits
    assert all(len(t) <= 2 for t in commit.tables)


def test_nothing_of_a_large_transaction_lands_when_the_connection_is_lost_in_it() -> None:
    log = MemoryLog()
    source = ListSource(small(20), *large(30, 3)[:2], ConnectionLost("server", "gone"))
    with pytest.raises(ConnectionLost):
        Landing(source, log, log, AT_ONCE).run()
    assert log.rows == [(20, 0), (20, 1)]
    assert source.confirmed == [20]


def test_waiting_inside_a_large_transaction_is_not_its_end() -> None:
    log = MemoryLog()
    first, second, end = large(30, 2)
    land(log, first, None, second, None, end)
    assert [len(c.tables) for c in log.commits] == [1]
    assert len(log.rows) == 4


# --- positions without changes ----------------------------------------------------------------


def test_a_wanted_reply_is_given_at_once_and_after_what_waits() -> None:
    log = MemoryLog()
    landing = Landing(ListSource(small(20), Keepalive(Lsn(50), wants_reply=True)), log, log, NEVER)
    landing._last_commit = 1e12
    landing.run()
    assert [(c.end_lsn, c.rows) for c in log.commits] == [(20, 2), (50, 0)]


def test_idle_positions_are_recorded_rarely() -> None:
    log = MemoryLog()
    land(
        log,
        *(Keepalive(Lsn(e)) for e in range(20, 90)),
        policy=FlushPolicy(idle_advance_seconds=60),
    )
    assert len(log.commits) <= 1


def test_an_idle_position_behind_the_watermark_is_no_commit() -> None:
    log = MemoryLog(watermark=Lsn(50))
    source = land(log, Keepalive(Lsn(40), wants_reply=True))
    assert not log.commits
    assert all(lsn <= 50 for lsn in source.confirmed)


def test_a_position_is_not_recorded_over_changes_that_wait() -> None:
    log = MemoryLog()
    landing = Landing(ListSource(small(20), Keepalive(Lsn(50))), log, log, NEVER)
    landing._last_commit = landing._last_advance = 1e12
    landing.run()
    assert log.rows == [(20, 0), (20, 1)]


def test_landing_ends_at_the_wanted_position() -> None:
    log = MemoryLog()
    land(
        log,
        small(20),
        Keepalive(Lsn(49)),
        Keepalive(Lsn(50)),
        small(60),
        policy=NEVER,
        until=Lsn(50),
    )
    assert log.watermark == 50
    assert log.rows == [(20, 0), (20, 1)]


def test_a_stop_lands_what_is_complete() -> None:
    log = MemoryLog()
    landing = Landing(ListSource(small(20), small(30)), log, log, NEVER)
    landing._last_commit = 1e12
    assert landing.run().watermark == 30


# --- whatever happens -------------------------------------------------------------------------


@dataclass
class Server:
    """Transactions by end_lsn; sends again what was not confirmed, cut into arrivals anyhow."""

    transactions: Sequence[tuple[int, int]]  # end_lsn, parts (0: small)
    confirmed: Lsn = START

    def arrivals(self, by: random.Random) -> list[Arrival | Exception | None]:
        back = by.choice((0, 0, 5, 30))  # what was confirmed may be sent again
        sent: list[Arrival | Exception | None] = []
        for end_lsn, parts in self.transactions:
            if end_lsn <= self.confirmed - back:
                continue
            sent += large(end_lsn, parts) if parts else [small(end_lsn)]
            if by.random() < 0.3:
                sent.append(Keepalive(Lsn(end_lsn + 1), wants_reply=by.random() < 0.5))
            if by.random() < 0.3:
                sent.append(None)
        cut = by.randrange(len(sent) + 2)
        return [*sent[:cut], ConnectionLost("server", "gone")] if cut < len(sent) else sent


@given(st.integers(0, 1 << 32))
def test_every_transaction_lands_once_in_order_and_whole(seed: int) -> None:
    by = random.Random(seed)
    ends = sorted(by.sample(range(START + 1, START + 60, 2), k=by.randint(1, 9)))
    transactions = [(end_lsn, by.choice((0, 0, 1, 3))) for end_lsn in ends]
    server, log = Server(transactions), MemoryLog()
    lost = True
    while lost:
        policy = by.choice([AT_ONCE, NEVER, FlushPolicy(1e9, flush_rows=3)])
        source = ListSource(*server.arrivals(by))
        try:
            Landing(source, log, log, policy).run()
            lost = False
        except ConnectionLost:
            lost = True
        assert all(lsn <= log.watermark for lsn in source.confirmed)
        server.confirmed = max([server.confirmed, *source.confirmed])
    assert log.rows == [(e, o) for e, parts in transactions for o in range(2 * (parts or 1))]
    held = [{e for t in c.tables for e, _ in t} for c in log.commits]
    assert sum(map(len, held)) == len(transactions), "a transaction in two commits"


def test_after_keeps_the_table_itself_when_all_of_it_is_new() -> None:
    changes = table((20, 0), (30, 0))
    assert after(changes, Lsn(19)) is changes
    assert after(changes, Lsn(20))["end_lsn"].to_pylist() == [30]
    assert after(changes, Lsn(30)).num_rows == 0


def test_how_late_the_newest_commit_was_durable_is_reported() -> None:
    log = MemoryLog()
    landed = Landing(ListSource(small(20), *large(30, 2)), log, log, AT_ONCE).run()
    since = time.time() - COMMITTED_AT.timestamp()
    assert landed.lag_seconds == pytest.approx(since, abs=60)
