"""What real transactions become: streamed, rolled back in part, huge, with DDL in them."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Self

import psycopg
import pyarrow as pa
import pytest

from pgstream_dagster.changelog.land import FlushPolicy
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import GAP_ORDINAL, Op
from pgstream_dagster.sql import statement
from tests.support.harness.capture import Capture, MemoryCommit
from tests.support.harness.oracle import STREAMED, Oracle, differences
from tests.support.harness.workload import Workload, create
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until
from tests.support.reference.change import Change

TABLE = "create table t (id bigint primary key, x text)"
LARGE = "repeat('y', 500)"
MANY = "insert into t select g, repeat('x', 100) from generate_series({}, {}) as g"


@pytest.fixture
def streamed(dsn: str) -> str:
    """A database whose larger transactions are streamed while they run."""
    [(name,)] = psql(dsn, "select current_database()")
    psql(dsn, f"alter database {name} set logical_decoding_work_mem = '64kB'", TABLE)
    return dsn


def landed_capture(dsn: str, *transactions: Iterable[str]) -> Capture:
    """A capture that has landed these transactions."""
    capture = Capture(dsn)
    with capture, psycopg.connect(dsn, autocommit=True) as connection:
        for statements in transactions:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)  # type: ignore[arg-type]
        capture.catch_up()
    return capture


def keys(capture: Capture) -> list[int]:
    return [int(c.key[0] or 0) for c in capture.log.changes if c.key and c.op is Op.INSERT]


def rows_of(capture: Capture) -> list[Change]:
    return [change for change in capture.log.changes if change.op is not Op.MESSAGE]


@pytest.mark.parametrize(
    ("seed", "messages"),
    [(1, False), pytest.param(2, False, marks=pytest.mark.long), (3, True)],
)
def test_the_stream_says_what_an_independent_slot_saw(dsn: str, seed: int, messages: bool) -> None:
    [(name,)] = psql(dsn, "select current_database()")
    psql(dsn, f"alter database {name} set logical_decoding_work_mem = '64kB'")
    create(dsn)
    oracle, capture = Oracle(dsn, messages=messages), Capture(dsn, messages=messages)
    workload = Workload(dsn, seed, rate=200, large_every=40, large_rows=(1_000, 3_000))
    with workload:
        workload.wait_for(300)
    with capture:
        capture.catch_up()
    expected = [c for c in oracle.changes() if capture.start < c.end_lsn <= capture.log.watermark]
    expected = [c for c in expected if '"prefix": "pgstream"' not in (c.payload or "")]  # ours
    landed = [c for c in capture.log.changes if c.op in STREAMED]
    report = differences(expected, landed)
    assert not report, "\n".join(report)
    assert len(landed) > 5_000


def test_a_streamed_transaction_is_one_commit_in_order(streamed: str) -> None:
    capture = landed_capture(streamed, [MANY.format(1, 20_000)])
    assert keys(capture) == list(range(1, 20_001))
    assert [c.position.ordinal for c in rows_of(capture)] == list(range(20_000))
    assert sum(commit.rows >= 20_000 for commit in capture.log.commits) == 1


def test_what_is_rolled_back_to_a_savepoint_is_not_there(streamed: str) -> None:
    transaction = [
        MANY.format(1, 3_000),
        "savepoint a",
        MANY.format(3_001, 6_000),
        "savepoint b",
        MANY.format(6_001, 9_000),
        "release savepoint b",
        "rollback to savepoint a",
        MANY.format(3_001, 3_500),
        "savepoint c",
        MANY.format(4_001, 5_000),
    ]
    capture = landed_capture(streamed, transaction)
    assert keys(capture) == [*range(1, 3_501), *range(4_001, 5_001)]
    assert [c.position.ordinal for c in rows_of(capture)] == list(range(4_500))


def test_a_rolled_back_stream_leaves_nothing_not_even_a_file(streamed: str) -> None:
    capture = Capture(streamed)
    with capture, psycopg.connect(streamed) as connection:
        files = capture.stream._assembler._spool._files
        connection.execute(MANY.format(1, 20_000))  # type: ignore[arg-type]
        until(lambda: any(file._file is not None for file in files))
        connection.rollback()
        psql(streamed, "insert into t values (7, 'kept')")
        capture.catch_up()
        until(lambda: not files)
    assert keys(capture) == [7]


def test_streams_that_run_at_the_same_time_are_kept_apart(streamed: str) -> None:
    capture = Capture(streamed)
    barrier = threading.Barrier(3)

    def write(first: int) -> None:
        with psycopg.connect(streamed) as connection:
            for part in range(5):
                barrier.wait()
                start = first + 1_000 * part
                connection.execute(MANY.format(start, start + 999))  # type: ignore[arg-type]

    with capture:
        writers = [threading.Thread(target=write, args=(n * 100_000,)) for n in (1, 2, 3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        capture.catch_up()
    by_transaction: dict[int | None, list[int]] = {}
    for change in rows_of(capture):
        assert change.key
        by_transaction.setdefault(change.xid, []).append(int(change.key[0] or 0))
    assert sorted(by_transaction.values()) == [
        list(range(n * 100_000, n * 100_000 + 5_000)) for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("messages", [True, False])
def test_a_message_that_was_rolled_back_is_not_there(streamed: str, messages: bool) -> None:
    """Postgres does not say which sub-transaction wrote a streamed message."""
    capture = Capture(streamed, messages=messages)
    with capture, psycopg.connect(streamed, autocommit=True) as connection:
        with connection.transaction():
            connection.execute("savepoint a")
            connection.execute("select pg_logical_emit_message(true, 'p', 'rolled back')")
            connection.execute(MANY.format(1, 3_000))  # type: ignore[arg-type]
            connection.execute("rollback to savepoint a")
            connection.execute("select pg_logical_emit_message(true, 'p', 'kept')")
            connection.execute(MANY.format(1, 2_000))  # type: ignore[arg-type]
        capture.catch_up()
    payloads = [c.payload for c in capture.log.changes if c.op is Op.MESSAGE]
    assert payloads == ['{"prefix": "p", "content": "kept"}'] * messages
    assert keys(capture) == list(range(1, 2_001))


def test_a_position_is_passed_at_once_on_an_idle_source(dsn: str) -> None:
    psql(dsn, TABLE)
    capture = Capture(dsn, policy=FlushPolicy(idle_advance_seconds=3600))

    def is_past(position: Lsn) -> bool:
        return capture.log.watermark > position

    with capture, psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(3):
            position = psql(dsn, "select pg_current_wal_insert_lsn()")[0][0]
            connection.execute(statement("source/pass_position"))
            until(partial(is_past, Lsn.parse(position)), seconds=10)
    assert [commit.rows for commit in capture.log.commits].count(0) >= 3
    assert not capture.log.changes


class Memory:
    """The highest resident size of this process while it looks; a context manager."""

    def __enter__(self) -> Self:
        self.before = self.peak = self._resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.02):
            self.peak = max(self.peak, self._resident())

    def _resident(self) -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()


class Counting:
    """Counts the rows of commits and forgets them."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def commit(self, tables: Iterable[pa.Table]) -> int:
        self.rows.append(sum(table.num_rows for table in tables))
        return self.rows[-1]


@pytest.mark.parametrize(
    "is_streamed",
    [
        pytest.param(True, id="streamed", marks=pytest.mark.long),
        pytest.param(False, id="at its commit"),
    ],
)
@pytest.mark.slow
def test_memory_does_not_grow_with_a_transaction(dsn: str, is_streamed: bool) -> None:
    """400,000 rows of 500 bytes: 200 MB, more on the wire."""
    psql(dsn, TABLE)
    capture = Capture(dsn, policy=FlushPolicy(), messages=not is_streamed)
    counting = Counting()

    def commit(tables: Iterable[pa.Table], end_lsn: Lsn) -> MemoryCommit:
        rows = counting.commit(tables)
        return capture.log._committed(MemoryCommit(len(counting.rows), rows, end_lsn))

    capture.log.commit = commit  # type: ignore[method-assign]
    with capture:
        psql(dsn, MANY.format(1, 1_000))
        capture.catch_up()
        with Memory() as memory:
            psql(dsn, f"insert into t select g, {LARGE} from generate_series(2001, 402000) as g")
            capture.catch_up(timeout_seconds=200)
    assert 400_000 in counting.rows
    grown = memory.peak - memory.before
    assert grown < 256 << 20, f"grown by {grown >> 20} MB"


# --- DDL --------------------------------------------------------------------------------------


def images(capture: Capture) -> list[dict[str, str | None]]:
    return [dict(c.after) for c in rows_of(capture) if c.after is not None]


def test_columns_that_come_go_and_change_names_take_effect_at_their_row(streamed: str) -> None:
    capture = landed_capture(
        streamed,
        ["insert into t values (1, 'a')"],
        ["alter table t add column y int default 5", "insert into t values (2, 'b')"],
        ["alter table t rename column x to z", "insert into t values (3, 'c')"],
        ["alter table t drop column z", "insert into t values (4)"],
    )
    assert images(capture) == [
        {"id": "1", "x": "a"},
        {"id": "2", "x": "b", "y": "5"},
        {"id": "3", "z": "c", "y": "5"},
        {"id": "4", "y": "5"},
    ]
    assert not any(change.op is Op.GAP for change in rows_of(capture))
    assert capture.log.schemas[max(capture.log.schemas)][1].attnums == {"id": 1, "y": 3}


def test_a_column_made_after_the_row_is_not_taken_for_one_of_its_name_dropped_since(
    streamed: str,
) -> None:
    capture = Capture(streamed)
    with capture:
        psql(streamed, "insert into t values (1, 'a')")
        capture.catch_up()
    psql(
        streamed,
        "alter table t rename column x to z",
        "insert into t values (2, 'of the dropped column')",
        "alter table t drop column z",
        "alter table t add column z text",
    )
    with capture:
        capture.catch_up()
    [gap] = [c for c in rows_of(capture) if c.op is Op.GAP]
    assert any(since > gap.position.commit_lsn for _, since, _ in capture.requested)


def test_ddl_in_a_rolled_back_savepoint_of_a_stream_never_was(streamed: str) -> None:
    transaction = [
        MANY.format(1, 2_000),
        "savepoint a",
        "alter table t add column y int",
        "insert into t select g, 'never', g from generate_series(3001, 6000) as g",
        "rollback to savepoint a",
        MANY.format(2_001, 4_000),
    ]
    capture = landed_capture(streamed, transaction, ["insert into t values (9000, 'later')"])
    assert keys(capture) == [*range(1, 4_001), 9_000]
    assert all(set(image) == {"id", "x"} for image in images(capture))


def test_a_table_renamed_in_the_stream_stays_the_same_relation(streamed: str) -> None:
    capture = landed_capture(
        streamed,
        ["insert into t values (1, 'a')"],
        ["alter table t rename to u", "insert into u values (2, 'b')"],
    )
    assert [(c.relation, c.key) for c in rows_of(capture)] == [("t", ("1",)), ("u", ("2",))]
    assert len({c.relation_id for c in rows_of(capture)}) == 1


def test_another_key_lands_a_gap_and_asks_for_a_copy_from_behind_it(streamed: str) -> None:
    psql(streamed, "alter table t add column k int not null default 0")
    capture = landed_capture(
        streamed,
        ["insert into t values (1, 'a')"],
        [
            "alter table t drop constraint t_pkey, add primary key (k, id)",
            "insert into t values (2, 'b')",
        ],
    )
    [gap] = [c for c in rows_of(capture) if c.op is Op.GAP]
    second = rows_of(capture)[-1]
    assert gap.position == (1, second.position.commit_lsn, GAP_ORDINAL)
    assert second.key == ("0", "2")
    [(_, since, _)] = [wish for wish in capture.requested if wish[1]]
    assert since > second.position.commit_lsn


def test_a_key_that_changes_twice_in_one_transaction_lands_one_gap(streamed: str) -> None:
    psql(streamed, "alter table t add column k int not null default 0")
    other_key = "alter table t drop constraint t_pkey, add primary key ({})"
    capture = landed_capture(
        streamed,
        ["insert into t values (1, 'a')"],
        [
            other_key.format("id, k"),
            "insert into t values (2, 'b')",
            other_key.format("id"),
            "insert into t values (3, 'c')",
        ],
    )
    first, gap, second, third = rows_of(capture)
    assert (first.key, second.key, third.key) == (("1",), ("2", "0"), ("3",))
    assert (gap.op, gap.position) == (Op.GAP, (1, second.position.commit_lsn, GAP_ORDINAL))


def test_a_table_made_and_filled_in_one_transaction_is_all_there(streamed: str) -> None:
    capture = landed_capture(
        streamed, ["create table made as select g as n from generate_series(1, 3000) as g"]
    )
    assert [c.after for c in rows_of(capture)] == [{"n": str(n)} for n in range(1, 3_001)]


# --- transactions of other kinds --------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 3_000], ids=["small", "streamed"])
def test_a_prepared_transaction_is_there_once_it_is_committed(streamed: str, rows: int) -> None:
    capture = Capture(streamed)
    with capture, psycopg.connect(streamed, autocommit=True) as connection:
        name = f"prepared_{rows}_{capture.slot}"
        for number, ending in enumerate(("commit", "rollback")):
            first = 10_000 * number + 1
            connection.execute("begin")
            connection.execute(MANY.format(first, first + rows - 1))  # type: ignore[arg-type]
            connection.execute(f"prepare transaction '{name}_{ending}'")  # type: ignore[arg-type]
        connection.execute("insert into t values (99999, 'between')")
        capture.catch_up()
        assert keys(capture) == [99_999]
        for ending in ("commit", "rollback"):
            connection.execute(f"{ending} prepared '{name}_{ending}'")  # type: ignore[arg-type]
        capture.catch_up()
    assert keys(capture) == [99_999, *range(1, rows + 1)]


@pytest.mark.parametrize("rows", [3, 3_000], ids=["small", "streamed"])
def test_a_transaction_that_came_from_elsewhere_is_a_transaction(streamed: str, rows: int) -> None:
    capture = Capture(streamed)
    origin = f"origin_{capture.slot}"
    with capture, psycopg.connect(streamed, autocommit=True) as connection:
        connection.execute("select pg_replication_origin_create(%s)", [origin])
        connection.execute("select pg_replication_origin_session_setup(%s)", [origin])
        with connection.transaction():
            connection.execute("select pg_replication_origin_xact_setup('0/1234', now())")
            connection.execute(MANY.format(1, rows))  # type: ignore[arg-type]
        connection.execute("select pg_replication_origin_session_reset()")
        capture.catch_up()
        connection.execute("select pg_replication_origin_drop(%s)", [origin])
    assert keys(capture) == list(range(1, rows + 1))


def xids(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    """The (sub-)transaction's id, as rows have it."""
    connection.execute("create temporary table if not exists own ()")
    connection.execute("insert into own default values")
    [(xid,)] = connection.execute("select xmin::text::bigint from own").fetchall()
    connection.execute("delete from own")
    assert isinstance(xid, int)
    return xid


@pytest.mark.long
def test_truncates_are_given_with_the_transaction_that_made_the_file(streamed: str) -> None:
    psql(streamed, "create table u (id int)")
    expected: list[tuple[int, int]] = []
    capture = Capture(streamed)
    with capture, psycopg.connect(streamed, autocommit=True) as connection:
        [(t, u)] = connection.execute("select 't'::regclass::int8, 'u'::regclass::int8").fetchall()
        with connection.transaction():
            connection.execute("truncate t, u")
            connection.execute(MANY.format(1, 10))  # type: ignore[arg-type]
            connection.execute("truncate t")
            top = xids(connection)
        expected += [(t, top), (u, top)]
        with connection.transaction():
            connection.execute("truncate u")
            connection.execute(MANY.format(20_000, 40_000))  # type: ignore[arg-type]
            top = xids(connection)
            with connection.transaction():
                connection.execute("truncate t")
                connection.execute(MANY.format(1, 20_000))  # type: ignore[arg-type]
                sub = xids(connection)
            with connection.transaction(force_rollback=True):
                connection.execute("truncate u")
                connection.execute(MANY.format(40_001, 60_000))  # type: ignore[arg-type]
        expected += [(u, top), (t, sub)]
        capture.catch_up()
    assert sorted((oid, xid) for oid, xid, _ in capture.truncated) == sorted(expected)
    commits = {c.position.commit_lsn for c in capture.log.changes if c.op is Op.TRUNCATE}
    assert {lsn for *_, lsn in capture.truncated} == commits


RAW = "create cast (bytea as text) without function"
"""Octets become text as they are: what a faulty C function makes."""


def test_a_value_that_is_not_utf_8_is_landed_escaped(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    value = "'\\x61ff'::bytea::text"
    psql(dsn, RAW, TABLE, "create table k (id text primary key)")
    capture = landed_capture(
        dsn,
        [f"insert into t values (1, {value}), (2, '\\xff')", f"insert into k values ({value})"],
        [f"update t set x = x || {value} where id = 1", "delete from k"],
    )
    landed = rows_of(capture)
    assert [(c.op, c.after or c.before, c.payload) for c in landed] == [
        (Op.INSERT, {"id": "1", "x": "a\\xff"}, '{"escaped": ["x"]}'),
        (Op.INSERT, {"id": "2", "x": "\\xff"}, None),
        (Op.INSERT, {"id": "a\\xff"}, '{"escaped": ["id"]}'),
        (Op.UPDATE, {"id": "1", "x": "a\\xffa\\xff"}, '{"escaped": ["x"]}'),
        (Op.DELETE, {"id": "a\\xff"}, '{"escaped": ["id"]}'),
    ]
    warned = [message for message in caplog.messages if "UTF-8" in message]
    assert len(warned) == 2
    assert "'public.t'" in warned[0] and "'x'" in warned[0]


def test_an_insert_without_a_value_brings_a_gap_and_a_copy(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that moves into a row filter, whose large value did not change."""
    capture_of = "create publication {} for table t where (id > 5)"
    psql(
        dsn,
        "create table t (id int primary key, doc text)",
        "alter table t alter doc set storage external",
        "insert into t select i, repeat('z', 9000) from generate_series(1, 3) i",
    )
    capture = Capture(dsn, tables=["public.t"])
    psql(dsn, f"drop publication {capture.publication}", capture_of.format(capture.publication))
    with capture:
        psql(
            dsn,
            "begin; update t set id = 11 where id = 1; insert into t values (12, 'seen'); commit",
            "insert into t values (13, 'seen')",
        )
        capture.catch_up()
    landed = rows_of(capture)
    assert [(c.op, c.key) for c in landed] == [
        (Op.GAP, None),
        (Op.INSERT, ("12",)),
        (Op.INSERT, ("13",)),
    ]
    [(_, since, reason)] = [wish for wish in capture.requested if wish[1]]
    assert since == landed[0].position.commit_lsn + 1
    assert "alter table public.t replica identity full" in reason
    assert sum("'doc'" in message for message in caplog.messages) == 1


GENERATED_KEY = (
    "create table t (a int, g int generated always as (x) stored, x int, primary key (a, g))",
)
NULLABLE_KEY = (
    "create table t (a int, x int)",
    "create unique index i on t (a)",
    "alter table t add constraint n not null a not valid",
    "alter table t replica identity using index i",
)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(GENERATED_KEY, marks=pytest.mark.majors(until=17)),  # 18 sends it
        pytest.param(NULLABLE_KEY, marks=pytest.mark.majors(since=18)),  # NOT NULL ... NOT VALID
    ],
)
def test_a_key_that_is_not_sent_or_may_be_null_brings_gaps_until_the_table_is_full(
    dsn: str, table: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    psql(dsn, *table)
    capture = Capture(dsn)
    with capture:
        psql(
            dsn,
            "insert into t (a, x) values (1, 1), (2, 2)",
            "update t set x = 3 where x = 1",
            "delete from t where a = 2",
            "alter table t replica identity full",
            "update t set x = 4",
        )
        capture.catch_up()
    rows = [change for change in capture.log.changes if change.op is not Op.MESSAGE]
    ops = [Op.INSERT, Op.INSERT, Op.GAP, Op.GAP, Op.UPDATE]
    assert [change.op for change in rows] == ops
    assert {change.key for change in rows} == {None}
    assert rows[-1].before == {"a": "1", "x": "3"}
    after = [c.position.commit_lsn + 1 for c in rows if c.op is Op.GAP]
    asked = [since for _, since, _ in capture.requested if since]
    assert asked in (after, after[1:])  # of two in one block the later copy serves both
    [message] = [message for message in caplog.messages if "'public.t'" in message]
    assert "alter table public.t replica identity full" in message
