"""
One log and every kind of target at once, delivered by `pgstream sink run`, which is killed.

Afterwards the other database equals the source, with masked values; Kafka has each change once; the
webhook and the files have each change at least once, in order per table.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, read_changes, setup
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import changes_of
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.sinks.control import sink_status
from tests.support.harness.runner import catch_up, streaming
from tests.support.plugins.cluster import psql
from tests.support.plugins.kafka import read
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.one_major("newest")]

KILLED_AT = ("sink.delivered:2", "kafka.sent:2", "postgres_sink.applied", "sink.saved:6")

FILE = """
pipeline: {name}
source: {{tables: ["customers", "orders"]}}
sinks:
  events:
    kafka:
      bootstrap_servers_from: KAFKA
      topic: "{topic}"
      create: {{}}
      exactly_once: true
      progress_topic: "{topic}.progress"
  replica:
    postgres: {{dsn_variable: REPLICA_DSN}}
    modifiers: [mask]
  archive:
    files: {{folder: archive}}
  partner:
    webhook:
      secret: WEBHOOK_SECRET
      allow_private_addresses: true
      subscriptions: {{erp: {{url: "http://127.0.0.1:{port}/", table: orders}}}}
modifiers:
  mask: {{transform: {{"public.customers": {{email: {{name: hash}}}}}}}}
"""

TABLES = (
    "create table customers (id bigint primary key, email text, biography text)",
    "create table orders (id bigint primary key, customer int, amount numeric, paid timestamptz)",
    (
        "insert into customers select g, 'person' || g || '@example.com', repeat(md5(g::text), 300)"
        " from generate_series(1, 50) g"
    ),
    "insert into orders select g, g % 50 + 1, g / 7.0, null from generate_series(1, 200) g",
)


class Receiver(ThreadingHTTPServer):
    """Keeps the event ids that it was sent, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.event_ids: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["event_id"] == self.headers["webhook-id"]
        self.server.event_ids.append(body["event_id"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """The test's output stays readable."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.long
def test_every_target_has_what_the_log_has(
    dsn: str,
    tmp_path: Path,
    spark: object,
    kafka: Any,
    topic_prefix: str,
    receiver: Receiver,
    replica: str,
) -> None:
    psql(dsn, *TABLES)
    name = f"p_{conninfo_to_dict(dsn)['dbname']}"
    port = receiver.server_address[1]
    topic = f"{topic_prefix}events"
    (tmp_path / "pgstream.yaml").write_text(FILE.format(name=name, topic=topic, port=port))
    environment = {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(tmp_path / "lake"),
        "PGSTREAM_STATE": str(tmp_path / "state"),
        "PGSTREAM_MODIFIER_KEY": "k" * 32,
        "KAFKA": kafka.servers,
        "REPLICA_DSN": replica,
        "WEBHOOK_SECRET": "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    }
    pipeline = Pipeline.from_file(tmp_path / "pgstream.yaml", environment)
    setup(pipeline)
    for failpoint in KILLED_AT:
        with streaming(pipeline), delivering(tmp_path, environment, failpoint) as process:
            until(lambda: work(dsn) or process.poll() is not None, every=1.0)
            assert process.returncode == -signal.SIGKILL, output(tmp_path)
    catch_up(pipeline)
    with pipeline.open() as opened:
        watermark = opened.require_watermark()
    with delivering(tmp_path, environment, None):
        until(
            lambda: is_delivered(pipeline, watermark),
            every=1.0,
            progress=lambda: [status.position for status in sink_status(pipeline)],
        )
    ids = event_ids(pipeline)
    assert rows(replica, "orders", "*") == rows(dsn, "orders", "*")
    kept = "id, biography"
    assert rows(replica, "customers", kept) == rows(dsn, "customers", kept)
    assert psql(replica, "select count(*) from customers where email like '%@%'") == [(0,)]
    sent = [json.loads(r.value)["event_id"] for r in read(kafka.servers, topic) if r.value]
    assert sorted(sent) == sorted(ids["customers"] + ids["orders"])
    assert once(receiver.event_ids) == ids["orders"]
    archived = [json.loads(line) for line in archive(tmp_path)]
    for table, expected in ids.items():
        assert once([m["event_id"] for m in archived if m["relation"] == table]) == expected


_turns = itertools.count(1)


def work(dsn: str) -> None:
    """Changes of every kind, as many however many came before."""
    turn = next(_turns)
    base = 1_000 * turn
    psql(
        dsn,
        f"insert into orders select g, 1, 0.1, now() from generate_series({base}, {base + 40}) g",
        f"update customers set email = 'x{base}@example.com' where id % 10 = {turn % 10}",
        f"update orders set amount = amount + 1 where id >= {base - 1_000} and id % 13 = 0",
        f"update orders set id = id + 1000000 where id = {base + 3}",
        f"delete from orders where id between {base + 10} and {base + 15}",
    )


@contextmanager
def delivering(
    folder: Path, environment: dict[str, str], failpoint: str | None
) -> Iterator[subprocess.Popen[bytes]]:
    """`pgstream sink run` in a process of its own."""
    with (folder / "sinks.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pgstream_dagster.cli", "sink", "run"],
            cwd=folder,
            env={**os.environ, **environment, "PGSTREAM_FAILPOINT": failpoint or ""},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def is_delivered(pipeline: Pipeline, watermark: Lsn) -> bool:
    positions = [status.position for status in sink_status(pipeline)]
    return len(positions) == 4 and all(p is not None and p >= watermark for p in positions)


def event_ids(pipeline: Pipeline) -> dict[str, list[str]]:
    """The event ids of each table's changes, in order, from the log."""
    with pipeline.open() as opened:
        schemas = opened.schema_log.by_id()
    ids: dict[str, list[str]] = {}
    for table in ("customers", "orders"):
        changes = read_changes(pipeline, table).where("op <> 'copy'")
        rows = changes.orderBy("commit_lsn", "ordinal").toArrow().cast(CHANGES)
        ids[table] = [change.event_id for change in changes_of(rows, schemas)]
    return ids


def rows(dsn: str, table: str, columns: str) -> list[Any]:
    return psql(dsn, f"select {columns} from {table} order by id")


def once(event_ids: list[str]) -> list[str]:
    """The ids at their first appearance."""
    return list(dict.fromkeys(event_ids))


def archive(folder: Path) -> Iterator[str]:
    for path in sorted((folder / "archive").glob("*.ndjson")):
        yield from path.read_text().splitlines()


def output(folder: Path) -> str:
    return (folder / "sinks.log").read_text(errors="replace")[-4_000:]


@pytest.mark.long
def test_what_people_ask_on_the_command_line(dsn: str, tmp_path: Path, spark: object) -> None:
    psql(dsn, *TABLES)
    name = f"p_{conninfo_to_dict(dsn)['dbname']}"
    (tmp_path / "pgstream.yaml").write_text(
        f"pipeline: {name}\nsinks: {{archive: {{files: {{folder: archive}}, tables: [orders]}}}}\n"
    )
    environment = {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(tmp_path / "lake"),
        "PGSTREAM_STATE": str(tmp_path / "state"),
    }
    setup(Pipeline.from_file(tmp_path / "pgstream.yaml", environment))

    def pgstream(*arguments: str) -> str:
        command = [sys.executable, "-m", "pgstream_dagster.cli", *arguments]
        variables = {**os.environ, **environment}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=True)
        return done.stdout.decode()

    with delivering(tmp_path, environment, None):
        until(lambda: len(list(archive(tmp_path))) == 200)
        [status] = json.loads(pgstream("sink", "status", "--json"))
        assert (status["is_running"], status["is_paused"], status["refused"]) == (True, False, 0)
        pgstream("sink", "pause", "archive")
        assert "archive  files   paused" in pgstream("sink", "status")
        pgstream("sink", "resume", "archive")
        pgstream("sink", "replay", "archive", "--from", "start", "--tables", "orders")
        assert len(list(archive(tmp_path))) == 400
    pgstream("sink", "reset", "archive", "--from", "start")
    with delivering(tmp_path, environment, None):
        until(lambda: len(list(archive(tmp_path))) == 601)  # the marker of the copy, too
    assert "no dead letters" in pgstream("sink", "letters", "archive")
