"""
Postgres, log, Kafka, log, Postgres: the rows at the end are those at the beginning.

In between are every kind of value, large values that an update does not send, a table without a
key, new columns, and two processes that read the topics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, setup
from pgstream_dagster.consumer.consume import consume
from pgstream_dagster.sinks import run as sinks_run
from tests.support.harness.background import in_thread
from tests.support.harness.runner import catch_up, streaming
from tests.support.plugins.cluster import psql
from tests.support.plugins.kafka import topics
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

COLUMNS = """id bigint primary key, amount numeric, tags text[], doc jsonb, plain json,
 paid_at timestamptz, is_paid boolean, data bytea, ratio float8, levels int[], days date[],
 docs jsonb[], flags boolean[], note text"""

TABLES = (
    f"create table orders ({COLUMNS})",
    "create table events (n int, note text)",
    "alter table events replica identity full",
    r"""insert into orders select g, g / 7.0, array['a,b', null, 'NULL', '', g::text],
    jsonb_build_object('n', g, 's', 'é"\'), '{"x":  1.10}', now(), g % 2 = 0,
    decode(md5(g::text), 'hex'), case g % 3 when 0 then 'NaN' else g / 3.0 end,
    '{{1,2},{3,null}}', '{2026-01-01,infinity}',
    array['{"a": 1}'::jsonb, null, '[1]', '"q"'],
    '{t,f,null}', repeat(md5(g::text), 300) from generate_series(1, 60) g""",
    "insert into orders (id) values (1000)",
    "insert into events select g % 5, 'x' from generate_series(1, 20) g",
)

SHOP = """
pipeline: {name}
source: {{tables: [orders, events]}}
sinks:
  events:
    kafka:
      bootstrap_servers_from: KAFKA
      topic: "{prefix}{{relation}}"
      schemas_topic: "{prefix}schemas"
      create: {{partitions: 3}}
      exactly_once: true
      progress_topic: "{prefix}progress"
"""

COPY = """
pipeline: {name}_copy
source:
  kafka:
    bootstrap_servers_from: KAFKA
    topics: ["{prefix}orders", "{prefix}ev*"]
    schemas_topic: "{prefix}schemas"
capture: {{flush_seconds: 0.1}}
sinks:
  replica:
    postgres: {{dsn_variable: REPLICA_DSN, schema: existing}}
  archive:
    files: {{folder: {folder}}}
"""


@pytest.mark.long
def test_the_rows_at_the_end_are_those_at_the_beginning(
    dsn: str, replica: str, tmp_path: Path, spark: object, kafka: Any, topic_prefix: str
) -> None:
    psql(dsn, *TABLES)
    psql(replica, f"create table orders ({COLUMNS}, extra int default 7)", TABLES[1])
    environment = {"PGSTREAM_DSN": dsn, "KAFKA": kafka.servers, "REPLICA_DSN": replica}
    names = {"name": f"p_{conninfo_to_dict(dsn)['dbname']}", "prefix": topic_prefix}
    shop = pipeline(tmp_path / "shop", SHOP.format(**names), environment)
    text = COPY.format(**names, folder=tmp_path / "archive")
    copy = pipeline(tmp_path / "copy", text, environment)
    setup(shop)
    setup(copy)
    with ExitStack() as running:
        running.enter_context(streaming(shop))
        deliver = running.enter_context(
            in_thread(lambda stop: sinks_run.run(shop, stop=stop, environment=environment))
        )
        both = {f"{topic_prefix}orders", f"{topic_prefix}events"}
        until(lambda: deliver() or both <= topics(kafka.servers, topic_prefix).keys(), every=0.5)
        works = (
            lambda stop: consume(copy, stop=stop, environment=environment),
            lambda stop: consume(copy, stop=stop, environment=environment),
            lambda stop: sinks_run.run(copy, stop=stop, environment=environment),
        )
        checks = [deliver, *(running.enter_context(in_thread(work)) for work in works)]
        for turn in range(1, 6):
            change(dsn, turn)
        psql(dsn, "alter table orders add column extra int default 7")
        for turn in range(6, 10):
            change(dsn, turn)
        until(
            lambda: any(check() for check in checks) or same(dsn, replica),
            every=1.0,
            progress=lambda: rows(replica, "events"),
        )
    catch_up(shop)
    assert rows(replica, "orders") == rows(dsn, "orders")
    assert rows(replica, "events") == rows(dsn, "events")
    archived = [json.loads(line) for line in archive(tmp_path)]
    origins = [json.loads(message["payload"])["event_id"] for message in archived]
    assert len(set(origins)) == len(origins)
    assert len({message["event_id"] for message in archived}) == len(archived)


def pipeline(folder: Path, text: str, environment: dict[str, str]) -> Pipeline:
    folder.mkdir()
    (folder / "pgstream.yaml").write_text(text)
    lake = {"PGSTREAM_LAKE": str(folder / "lake"), "PGSTREAM_STATE": str(folder / "state")}
    return Pipeline.from_file(folder / "pgstream.yaml", environment | lake)


def change(dsn: str, turn: int) -> None:
    base = 10_000 * turn
    psql(
        dsn,
        f"insert into orders (id, note) select g, 'n' from generate_series({base}, {base + 30}) g",
        f"update orders set amount = {turn}.10 where id % 7 = {turn % 7}",
        f"delete from orders where id between {base + 10} and {base + 15}",
        f"insert into events select {turn}, null from generate_series(1, 3)",
        f"delete from events where ctid = (select min(ctid) from events where n = {turn % 5})",
    )


def same(dsn: str, replica: str) -> bool:
    return all(rows(dsn, table) == rows(replica, table) for table in ("orders", "events"))


def rows(dsn: str, table: str) -> list[Any]:
    """Every row as text, in an order that both databases have."""
    return psql(dsn, f'select t::text from {table} t order by t::text collate "C"')


def archive(folder: Path) -> Iterator[str]:
    for path in sorted((folder / "archive").glob("*.ndjson")):
        yield from path.read_text().splitlines()
