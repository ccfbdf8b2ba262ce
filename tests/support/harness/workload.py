"""
A workload of every kind of change, seeded, on threads of its own.

What is done depends on the seed alone; when it is done, and so how the writers interleave, does
not. Every statement tolerates any state of the tables, so writers continue after an error of theirs
(a deadlock, a server that went away) with the next transaction.
"""

from __future__ import annotations

import random
import string
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, LiteralString, Self, TypeAlias

import psycopg

SCHEMA: Final[Sequence[LiteralString]] = (
    """create table accounts (
        id bigint primary key, owner text not null, balance numeric(12, 2), note text)""",
    """create table documents (
        id text primary key, revision int not null, body text, meta jsonb, tags text[])""",
    "alter table documents alter column body set storage external",  # TOASTed however repetitive
    "alter table documents alter column id set storage external",
    # The key's order is not the columns' order.
    """create table lines (
        order_id bigint, quantity int, line_no int, sku text, primary key (line_no, order_id))""",
    "create table events (at timestamptz, kind text, body text)",
    "alter table events replica identity full",
    "alter table events alter column body set storage external",
    "create table audit (who text, what jsonb)",
    "alter table audit replica identity full",  # without, its publication would be refused
    """create table parts (
        region text, id bigint, stock int, primary key (region, id)) partition by list (region)""",
    "create table parts_north partition of parts for values in ('north')",
    "create table parts_rest partition of parts default",
)
"""The tables, by psql or `create`; every one is published."""

TABLES: Final = ("accounts", "documents", "lines", "events", "audit", "parts")

LARGE_ROWS: Final = (5_000, 60_000)
"""Of a large transaction: beyond 64 kB of logical_decoding_work_mem Postgres streams it."""

KEYS: Final = 24
"""Of one writer and table: few, so that the same rows change again and again."""

WRITER_KEYS: Final = 1_000_000
"""Between the keys of two writers: they meet in truncates and shared rows only."""

TRICKLE: Final = 4.0
"""Transactions per second and writer after the burst."""

PATIENCE_SECONDS: Final = 60.0
"""Without a single transaction that worked: then the server is not coming back."""

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]
Operation: TypeAlias = Callable[["Writer", Cursor], None]

_ALPHABET: Final = (
    string.ascii_letters + string.digits + " '\"\\\t\n,{}()%_;é߀漢字\U0001f600\u200f\u0301"
)


def create(dsn: str) -> None:
    """Make the tables."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in SCHEMA:
            connection.execute(statement)


@dataclass
class Workload:
    """
    `writers` threads of transactions until stopped; a context manager stops it too.

    Units:
        rate: transactions per second and writer, at most.
        large_every: every so many-th transaction of a writer is large; 0: none is.
        burst: after so many transactions a writer only trickles, so that a slow machine's backlog
            stays small.
        truncates: some make the recopier copy tables again, beside what a test is about.
    """

    dsn: str
    seed: int
    writers: int = 2
    rate: float = 60.0
    large_every: int = 40
    large_rows: tuple[int, int] = LARGE_ROWS
    burst: int = 1 << 30
    truncates: bool = True
    counts: Counter[str] = field(default_factory=Counter)

    def start(self) -> Self:
        """Begin to write."""
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"writer-{number}", daemon=True)
            for number in range(self.writers)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Ask the writers to end with their transaction under way."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the writers; raises what ended one of them."""
        self.stop()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is None:
            self.join()

    def wait_for(self, transactions: int, timeout_seconds: float = 60.0) -> None:
        """Until so many transactions have committed."""
        deadline = time.monotonic() + timeout_seconds
        while self.counts["committed"] < transactions:
            if self._failures:
                raise self._failures[0]
            if time.monotonic() > deadline:
                raise TimeoutError(f"{dict(self.counts)} after {timeout_seconds} s")
            time.sleep(0.02)

    def run(self, transactions: int) -> Self:
        """One writer, here and now: so many transactions, one behind the other."""
        writer = Writer(self.seed, 0, self)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for number in range(1, transactions + 1):
                writer.transaction(connection, large=self._is_large(number))
        return self

    def _is_large(self, number: int) -> bool:
        return bool(self.large_every) and number % self.large_every == self.large_every // 2

    def _run(self, number: int) -> None:
        writer = Writer(self.seed, number, self)
        try:
            self._write(writer)
        except BaseException as error:
            self._failures.append(error)
            raise

    def _write(self, writer: Writer) -> None:
        done, worked = 0, time.monotonic()
        while not self._stop.is_set():
            try:
                with psycopg.connect(self.dsn, autocommit=True, connect_timeout=5) as connection:
                    while not self._stop.is_set():
                        done += 1
                        rate = self.rate if done <= self.burst else TRICKLE
                        due = time.monotonic() + 1 / rate
                        large = done <= self.burst and self._is_large(done)
                        writer.transaction(connection, large=large)
                        worked = time.monotonic()
                        self._stop.wait(due - time.monotonic())
            except psycopg.OperationalError:
                self.counts["disconnected"] += 1
                if time.monotonic() - worked > PATIENCE_SECONDS:
                    raise
                self._stop.wait(0.1)


class Writer:
    """The choices of one thread."""

    def __init__(self, seed: int, number: int, workload: Workload) -> None:
        self._seed, self._number, self._done = seed, number, 0
        self.random = random.Random()
        self.base = number * WRITER_KEYS
        self.workload = workload

    def transaction(
        self, connection: psycopg.Connection[tuple[Any, ...]], *, large: bool = False
    ) -> None:
        """One transaction, whatever becomes of it."""
        counts = self.workload.counts
        self._done += 1  # a failed transaction leaves the choices of the next as they are
        self.random.seed(f"{self._seed}/{self._number}/{self._done}")
        operations = self._choose(large=large)
        ending = self.random.random()
        try:
            with connection.transaction(force_rollback=ending < 0.08), connection.cursor() as at:
                self._perform(connection, at, operations)
        except (
            psycopg.errors.DeadlockDetected,
            psycopg.errors.UniqueViolation,
            psycopg.errors.LockNotAvailable,
        ) as error:
            counts[type(error).__name__] += 1
            return
        if ending < 0.08:
            counts["rolled back"] += 1
            return
        counts["committed"] += 1
        counts["large"] += large
        counts.update(operation.__name__ for operation in operations)

    def _choose(self, *, large: bool) -> list[Operation]:
        if large:
            return [large_transaction]
        if self.random.random() < 0.03 and self.workload.truncates:
            return [truncate]
        names, weights = zip(*OPERATIONS.items(), strict=True)
        return self.random.choices(names, weights, k=self.random.choice((1, 1, 1, 2, 3, 6)))

    def _perform(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        at: Cursor,
        operations: list[Operation],
    ) -> None:
        for operation in operations:
            chance = self.random.random()
            if chance < 0.3:  # in a sub-transaction, every other one of which is undone
                with connection.transaction(force_rollback=chance < 0.15):
                    operation(self, at)
            else:
                operation(self, at)

    # --- values -------------------------------------------------------------------------------

    def key(self) -> int:
        """One of this writer's keys."""
        return self.base + self.random.randrange(KEYS)

    def name(self) -> str:
        """One of this writer's text keys; some are so long that they are TOASTed."""
        number = self.random.randrange(KEYS)
        return f"{self.base}-{number}" + ("-" + "x" * 2_200 if number % 20 == 7 else "")

    def text(self, longest: int = 30) -> str | None:
        """NULL, empty, or of any letters."""
        if self.random.random() < 0.1:
            return None
        return "".join(self.random.choices(_ALPHABET, k=self.random.randrange(longest)))

    def body(self) -> str | None:
        """Mostly too large for the page."""
        if self.random.random() < 0.1:
            return self.text()
        return self.random.randbytes(self.random.randrange(1_500, 10_000)).hex()

    def between(self, low: int, high: int) -> int:
        """Both ends included."""
        return self.random.randint(low, high)


# --- operations: each does something in the transaction of the cursor -------------------------


def insert_account(by: Writer, at: Cursor) -> None:
    at.execute(
        "insert into accounts values (%s, %s, %s, %s) on conflict (id) do update"
        " set balance = excluded.balance, note = excluded.note",
        (by.key(), by.text() or "nobody", by.between(-(10**9), 10**9) / 100, by.text()),
    )


def update_account(by: Writer, at: Cursor) -> None:
    at.execute(
        "update accounts set balance = balance + %s, note = %s where id = %s",
        (by.between(-500, 500), by.text(), by.key()),
    )


def update_many_accounts(by: Writer, at: Cursor) -> None:
    first = by.key()
    at.execute(
        "update accounts set note = null where id between %s and %s", (first, first + KEYS // 4)
    )


def delete_account(by: Writer, at: Cursor) -> None:
    at.execute("delete from accounts where id = %s", (by.key(),))


def move_account(by: Writer, at: Cursor) -> None:
    at.execute(
        "update accounts set id = %(to)s where id = %(from)s"
        " and not exists (select from accounts where id = %(to)s)",
        {"from": by.key(), "to": by.key()},
    )


def swap_accounts(by: Writer, at: Cursor) -> None:
    """Two rows exchange their keys by way of a third, which belongs to nobody."""
    first, second, third = by.key(), by.key(), by.base + WRITER_KEYS - 1
    at.execute("delete from accounts where id = %s", (third,))
    for old, new in ((first, third), (second, first), (third, second)):
        at.execute(
            "update accounts set id = %(new)s where id = %(old)s"
            " and not exists (select from accounts where id = %(new)s)",
            {"old": old, "new": new},
        )


def churn_account(by: Writer, at: Cursor) -> None:
    """The same row is born, changed, deleted and born again."""
    key = by.key()
    at.execute("delete from accounts where id = %s", (key,))
    at.execute("insert into accounts values (%s, 'first', 1, null)", (key,))
    at.execute("update accounts set owner = 'second' where id = %s", (key,))
    at.execute("delete from accounts where id = %s", (key,))
    at.execute("insert into accounts values (%s, 'third', null, '')", (key,))


def insert_document(by: Writer, at: Cursor) -> None:
    at.execute(
        "insert into documents values (%s, 0, %s, jsonb_build_object('text', %s::text), %s)"
        " on conflict (id) do update set body = excluded.body, revision = 0",
        (by.name(), by.body(), by.body(), [by.text(), None, "a,b", '"']),
    )


def touch_document(by: Writer, at: Cursor) -> None:
    """The large columns stay: they are not sent."""
    at.execute("update documents set revision = revision + 1 where id = %s", (by.name(),))


def rewrite_document(by: Writer, at: Cursor) -> None:
    at.execute("update documents set body = %s where id = %s", (by.body(), by.name()))


def move_document(by: Writer, at: Cursor) -> None:
    at.execute(
        "update documents set id = %(to)s where id = %(from)s"
        " and not exists (select from documents where id = %(to)s)",
        {"from": by.name(), "to": by.name()},
    )


def delete_document(by: Writer, at: Cursor) -> None:
    at.execute("delete from documents where id = %s", (by.name(),))


def insert_lines(by: Writer, at: Cursor) -> None:
    at.execute(
        "insert into lines select %s, %s, n, %s from generate_series(1, %s) as n"
        " on conflict do nothing",
        (by.key(), by.between(0, 99), by.text(), by.between(1, 12)),
    )


def update_lines(by: Writer, at: Cursor) -> None:
    at.execute("update lines set quantity = quantity + 1 where order_id = %s", (by.key(),))


def move_lines(by: Writer, at: Cursor) -> None:
    at.execute(
        "update lines set order_id = %(to)s where order_id = %(from)s"
        " and not exists (select from lines where order_id = %(to)s)",
        {"from": by.key(), "to": by.key()},
    )


def delete_lines(by: Writer, at: Cursor) -> None:
    at.execute("delete from lines where order_id = %s and line_no %% 2 = 0", (by.key(),))


def insert_events(by: Writer, at: Cursor) -> None:
    """Equal rows, at least two."""
    at.execute(
        "insert into events select '2026-01-01'::timestamptz + %s * interval '1 us', %s, %s"
        " from generate_series(1, %s)",
        (by.between(0, 5), f"kind {by.between(0, 3)}", by.body(), by.between(2, 4)),
    )


def delete_one_event(by: Writer, at: Cursor) -> None:
    """One row of some that may be equal."""
    at.execute(
        "delete from events where ctid in (select ctid from events where kind = %s limit 1)",
        (f"kind {by.between(0, 3)}",),
    )


def update_one_event(by: Writer, at: Cursor) -> None:
    """Its body is sent in the old image only."""
    at.execute(
        "update events set kind = %s"
        " where ctid in (select ctid from events where kind = %s limit 1)",
        (f"kind {by.between(0, 3)}", f"kind {by.between(0, 3)}"),
    )


def insert_audit(by: Writer, at: Cursor) -> None:
    at.execute(
        "insert into audit select %s, jsonb_build_object('what', %s::text)"
        " from generate_series(1, %s)",
        (by.text(), by.text(), by.between(1, 3)),
    )


def insert_part(by: Writer, at: Cursor) -> None:
    at.execute(
        "insert into parts values (%s, %s, %s) on conflict do nothing",
        (by.random.choice(("north", "south", "")), by.key(), by.between(0, 9)),
    )


def update_part(by: Writer, at: Cursor) -> None:
    at.execute("update parts set stock = stock + 1 where id = %s", (by.key(),))


def move_part(by: Writer, at: Cursor) -> None:
    """Into another partition where the region's partition is another."""
    at.execute(
        "update parts as p set region = %(to)s where id = %(id)s and region = %(from)s"
        " and not exists (select from parts where region = %(to)s and id = %(id)s)",
        {
            "id": by.key(),
            "from": by.random.choice(("north", "south", "")),
            "to": by.random.choice(("north", "south", "")),
        },
    )


def delete_part(by: Writer, at: Cursor) -> None:
    at.execute("delete from parts where id = %s", (by.key(),))


def message(by: Writer, at: Cursor) -> None:
    at.execute("select pg_logical_emit_message(true, 'proof', %s)", (by.text() or "",))


def binary_message(by: Writer, at: Cursor) -> None:
    at.execute(
        "select pg_logical_emit_message(true, 'proof bytes', %s::bytea)", (by.random.randbytes(9),)
    )


def message_outside(by: Writer, at: Cursor) -> None:
    """Not transactional: it is nobody's change, even when the transaction is rolled back."""
    at.execute("select pg_logical_emit_message(false, 'outside', %s)", (by.text() or "",))


def nothing(by: Writer, at: Cursor) -> None:
    """A transaction id and no change."""
    at.execute("select pg_current_xact_id(), %s::int", (by.between(0, 1),))


def truncate(by: Writer, at: Cursor) -> None:
    at.execute("set local lock_timeout = '2s'")
    at.execute(
        by.random.choice(
            (
                "truncate events",
                "truncate audit",
                "truncate lines, events restart identity",
                "truncate parts",
                "truncate documents cascade",
            )
        )
    )


def large_transaction(by: Writer, at: Cursor) -> None:
    """Streamed by Postgres while it runs; parts of it are undone, and most rows end with it."""
    rows, first = by.between(*by.workload.large_rows), by.base + WRITER_KEYS // 2
    insert = "insert into accounts select %s + n, 'bulk', n, repeat('é', 20) from generate_series(1, %s) as n on conflict (id) do update set note = 'again'"  # noqa: E501
    at.execute("delete from accounts where id between %s and %s", (first, first + 2 * 60_000))
    at.execute(insert, (first, rows // 2))
    at.execute("savepoint undone")
    at.execute(insert, (first + rows // 2, rows // 4))
    at.execute("update accounts set balance = -1 where id > %s and id < %s", (first, first + 500))
    at.execute("savepoint within")
    touch_document(by, at)
    at.execute("release savepoint within")
    at.execute("rollback to savepoint undone")
    insert_events(by, at)
    touch_document(by, at)
    at.execute("savepoint kept")
    at.execute(insert, (first + rows // 2, rows // 4))
    at.execute("release savepoint kept")
    if by.random.random() < 0.2:  # with what is undone before it, it costs the stream a reconnect
        message(by, at)
    at.execute("delete from accounts where id between %s and %s", (first + 50, first + rows // 3))
    if by.random.random() < 0.2 and by.workload.truncates:
        at.execute("truncate audit")


OPERATIONS: Final[dict[Operation, int]] = {
    insert_account: 10,
    update_account: 10,
    update_many_accounts: 3,
    delete_account: 4,
    move_account: 4,
    swap_accounts: 3,
    churn_account: 2,
    insert_document: 8,
    touch_document: 12,
    rewrite_document: 4,
    move_document: 3,
    delete_document: 2,
    insert_lines: 6,
    update_lines: 6,
    move_lines: 3,
    delete_lines: 3,
    insert_events: 6,
    delete_one_event: 4,
    update_one_event: 4,
    insert_audit: 6,
    insert_part: 8,
    update_part: 5,
    move_part: 5,
    delete_part: 3,
    message: 2,
    binary_message: 1,
    message_outside: 2,
    nothing: 3,
}
"""Every small operation and its weight."""
