"""
What subscriptions cost the application's writes, beside the function that postgres-stream makes.

`python -m benchmarks.outbox`: a statement of many rows, and transactions of one row, without
subscriptions and with 1, 3 and 10 of them; each has a condition that holds, and three columns.
`python -m benchmarks.outbox none`: with conditions that hold for no row.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from benchmarks.measure import load
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.outbox.install import install
from pgstream_dagster.outbox.maintain import maintain
from pgstream_dagster.source.connect import connect

COUNTS = (1, 3, 10)
BULK_ROWS = 200_000
SIDES = ("ours", "fail", "theirs")
"""Ours as it is by default, ours with `on_error` fail, and the seed's."""

TABLE = "create table written (id bigint primary key, a int, b text, c timestamptz)"
ROW = "{}, mod({}, 100), md5({}::text), timestamptz '2026-01-01'"
BULK = f"insert into written select {ROW.format('g', 'g', 'g')} from generate_series(1, {{}}) g"
SINGLE = f"insert into written select {ROW.format('g', 'g', 'g')} from (select %s::bigint as g) x"

THEIR_TABLES = """
create schema theirs;
create table theirs.events (
    id uuid not null default pgstream.uuid_v7(), payload jsonb not null, metadata jsonb,
    stream_id bigint not null, created_at timestamptz not null default clock_timestamp(),
    lsn pg_lsn,
    primary key (created_at, id)
) partition by range (created_at);
create table theirs.events_now partition of theirs.events for values from (minvalue) to (maxvalue);
"""

THEIR_BLOCK = """
    if {condition} then
        payloads := payloads || (jsonb_build_object(
            'tg_name', 'k{number}',
            'new', jsonb_build_object('id', new.id, 'a', new.a, 'b', new.b), 'old', null
        ) || base || '{{}}'::jsonb);
        metas := metas || jsonb_build_array('null'::jsonb);
    end if;
"""

THEIR_FUNCTION = """
create or replace function theirs.publish() returns trigger
language plpgsql security definer set search_path = '' as $function$
declare
    payloads jsonb := '[]'::jsonb;
    metas jsonb := '[]'::jsonb;
    base jsonb := jsonb_build_object(
        'tg_op', tg_op, 'tg_table_name', tg_table_name, 'tg_table_schema', tg_table_schema,
        'timestamp', (extract(epoch from now()) * 1000)::bigint
    );
begin
    {blocks}
    if jsonb_array_length(payloads) > 0 then
        insert into theirs.events (payload, metadata, stream_id, lsn)
        select p.value, nullif(m.value, 'null'), 1, pg_current_wal_lsn()
        from jsonb_array_elements(payloads) with ordinality as p (value, n)
        join jsonb_array_elements(metas) with ordinality as m (value, n) on p.n = m.n;
    end if;
    return new;
end
$function$
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a statement of many rows, and transactions of one row a second."""

    bulk_seconds: float
    transactions_per_second: float


def main() -> None:
    """What the arguments ask for: `none`, and a number of rows."""
    rows = next((int(word) for word in sys.argv[1:] if word.isdigit()), BULK_ROWS)
    costs(15, rows, "new.a < 0" if "none" in sys.argv else "new.a >= 0")


def costs(major: int, rows: int, condition: str = "new.a >= 0") -> list[dict[str, object]]:
    """Print a table: medians of three rounds, and their ratios to no subscription."""
    measured: dict[tuple[str, int], list[Cost]] = {}
    with Postgres(major) as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        with closing(connect(server.dsn)) as session:
            install(session)
            maintain(session)
        _run(connection, THEIR_TABLES, TABLE, "insert into pgstream.streams (id) values (1)")
        for side, count in [("none", 0), *_rounds()]:
            cost = measure(connection, side, count, condition, rows)
            measured.setdefault((side, count), []).append(cost)
    medians = {key: _median(values) for key, values in measured.items()}
    base = medians["none", 0]
    print(f"\noutbox: {rows:,} rows a statement; condition {condition}; load {load():.1f}")
    print(f"{'side':>6} {'subs':>4} {'bulk s':>7} {'ratio':>6} {'single/s':>9} {'ratio':>5}")
    for (side, count), cost in medians.items():
        print(
            f"{side:>6} {count:>4} {cost.bulk_seconds:>7.2f}"
            f" {cost.bulk_seconds / base.bulk_seconds:>6.1f}"
            f" {cost.transactions_per_second:>9,.0f}"
            f" {cost.transactions_per_second / base.transactions_per_second:>5.2f}"
        )
    return [
        {"side": side, "subscriptions": count, **asdict(cost)}
        for (side, count), cost in medians.items()
    ]


def _rounds() -> Iterator[tuple[str, int]]:
    """Each side next to the others, so that a busy machine is busy for all of them."""
    for _ in range(3):
        for count in COUNTS:
            yield from ((side, count) for side in SIDES)
        yield "none", 0


def measure(
    connection: psycopg.Connection[Any], side: str, count: int, condition: str, rows: int
) -> Cost:
    """Subscribe, write, and remove it all."""
    if side == "theirs":
        subscribe_theirs(connection, count, condition)
    else:
        subscribe_ours(connection, count, condition, "fail" if side == "fail" else "null")
    _run(connection, "truncate written, pgstream.events, theirs.events", "checkpoint")
    began = time.perf_counter()
    _run(connection, BULK.format(rows))
    bulk_seconds = time.perf_counter() - began
    _run(connection, "truncate written, pgstream.events, theirs.events", "checkpoint")
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < 2:
        number += 1
        connection.execute(SINGLE, (number,), prepare=True)
    cost = Cost(bulk_seconds, number / (time.perf_counter() - began))
    _run(
        connection,
        "delete from pgstream.subscriptions",
        "drop trigger if exists theirs on written",
    )
    return cost


def subscribe_ours(
    connection: psycopg.Connection[Any], count: int, condition: str, on_error: str
) -> None:
    """Subscriptions with a condition and three columns."""
    _run(
        connection,
        "insert into pgstream.subscriptions (key, stream_id, operation, schema_name, table_name,"
        " when_clause, column_names, on_error) select 'k' || n, 1, 'INSERT', 'public', 'written',"
        f" '{condition}', '{{id,a,b}}', '{on_error}' from generate_series(1, {count}) n",
    )


def subscribe_theirs(connection: psycopg.Connection[Any], count: int, condition: str) -> None:
    """The same in the shape of the seed: arrays of JSON, then one INSERT of their elements."""
    blocks = "".join(THEIR_BLOCK.format(condition=condition, number=n) for n in range(count))
    when = " or ".join(f"({condition})" for _ in range(count))
    _run(
        connection,
        THEIR_FUNCTION.format(blocks=blocks),
        "create constraint trigger theirs after insert on written deferrable initially deferred"
        f" for each row when ({when}) execute function theirs.publish()",
    )


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.bulk_seconds for cost in costs),
        statistics.median(cost.transactions_per_second for cost in costs),
    )


def _run(connection: psycopg.Connection[Any], *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.encode())


if __name__ == "__main__":
    main()
