"""
Kafka and another Postgres behind networks that break, while changes arrive.

One pipeline with its sinks runs during all tests. After each, the other database equals the source,
Kafka has each change once with `exactly_once`, and at least once and in order without it.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgstream_dagster import read_changes, setup
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import changes_of
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.sinks import follow, state
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.follow import SinkSession
from pgstream_dagster.sinks.kafka import admin, client
from tests.support.harness.background import in_thread
from tests.support.harness.kafka_network import KafkaBehindANetwork
from tests.support.harness.runner import flushed, new_pipeline, streaming
from tests.support.harness.tcp_proxy import TcpProxy, Throttle
from tests.support.harness.webhook_sinks import delivering, with_sinks
from tests.support.plugins.cluster import Server, database, psql
from tests.support.plugins.kafka import Read, read, start
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

TABLES = (
    "create table items (id bigint primary key, note text)",
    "create table journal (n bigint, note text)",  # a row that came twice would be there twice
    "alter table journal replica identity full",
    "insert into items select g, 'copied' from generate_series(1, 20) g",
    "insert into journal select g, 'copied' from generate_series(1, 20) g",
)

WORK = """
    insert into items select {base} + g, 'new' from generate_series(1, 20) g;
    update items set note = note || {base} where id % 7 = {turn} % 7 and id > {base} - 1200;
    delete from items where id = {base} - 990;
    insert into journal select {base} + g, repeat(md5(g::text), 20) from generate_series(1, 20) g
"""


@dataclass(frozen=True)
class Site:
    """`network` leads to Kafka, `replica_network` to the other database."""

    pipeline: Pipeline
    session: SinkSession
    kafka: KafkaBehindANetwork
    replica: str
    replica_network: TcpProxy
    turns: Iterator[int]

    @property
    def networks(self) -> tuple[TcpProxy, TcpProxy]:
        return self.kafka.network, self.replica_network

    def progress(self) -> list[state.Progress]:
        """Of all sinks."""
        return [state.progress(self.session.log, sink) for sink in self.pipeline.config.sinks]

    def errors(self) -> list[str | None]:
        return [progress.error for progress in self.progress()]

    def deliver_on(self) -> None:
        """Return when every sink has delivered some more."""
        before = self.progress()

        def is_more() -> bool:
            both = zip(self.progress(), before, strict=True)
            return all(now.changes > then.changes for now, then in both)

        until(is_more, every=0.1, progress=self.errors)


@pytest.fixture(scope="module")
def site(
    postgres: Server, spark: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(follow, "LONGEST_WAIT_SECONDS", 0.5)
        patch.setattr(follow, "SAVE_SECONDS", 0.5)
        patch.setattr(client, "REQUEST_SECONDS", 2.0)
        patch.setattr(admin, "REQUEST_SECONDS", 2.0)
        kafka = start(KafkaBehindANetwork())
        stack.callback(kafka.close)
        dsn = stack.enter_context(database(postgres))
        replica = stack.enter_context(database(postgres))
        server = conninfo_to_dict(replica)
        network = stack.enter_context(TcpProxy(str(server["host"]), int(str(server["port"]))))
        psql(dsn, *TABLES)
        brokers = {"bootstrap_servers": kafka.network_servers, "create": {}, "delivery_seconds": 4}
        exactly = {"exactly_once": True, "progress_topic": "progress", "transaction_seconds": 11}
        pipeline = with_sinks(
            new_pipeline(dsn, folder),
            events={"kafka": brokers | {"topic": "events"}},
            exact={"kafka": brokers | exactly | {"topic": "exact"}},
            replica={"postgres": {"dsn_variable": "REPLICA"}},
        )
        setup(pipeline)
        through = make_conninfo(replica, host="127.0.0.1", port=network.port)
        stack.enter_context(streaming(pipeline))
        stack.enter_context(delivering(pipeline, REPLICA=through))
        session = stack.enter_context(sinks_run.opened(pipeline))
        yield Site(pipeline, session, kafka, replica, network, itertools.count(1))


def break_connections(site: Site) -> None:
    for network in site.networks:
        network.cut()
    site.deliver_on()
    for network in site.networks:
        network.reset()
    site.deliver_on()
    for network in site.networks:
        network.throttle = Throttle(latency_seconds=0.01, bytes_per_second=1e6)
    site.deliver_on()
    for network in site.networks:
        network.cut()  # in the middle of what is on its way
        network.restore()


def take_the_targets_away(site: Site) -> None:
    for network in site.networks:
        network.refuse()
    until(lambda: all(site.errors()), every=0.1, progress=site.errors)
    for network in site.networks:
        network.restore()


def lose_what_is_sent(site: Site) -> None:
    for network in site.networks:
        network.drop()
    until(lambda: all(site.errors()[:2]), every=0.1, progress=site.errors)
    for network in site.networks:
        network.restore()
    # The proxy's kernel acknowledges what it loses: tcp_user_timeout does not end the session.
    site.replica_network.reset()


FAULTS = (break_connections, take_the_targets_away, lose_what_is_sent)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_targets_equal_the_log_after_their_networks(
    site: Site, fault: Callable[[Site], None]
) -> None:
    with in_thread(lambda stop: change(site, stop), "changes"):
        site.deliver_on()
        fault(site)
        site.deliver_on()
    settle(site)
    ids = event_ids(site.pipeline)
    sent = {topic: read(site.kafka.servers, topic) for topic in ("exact", "events")}
    assert sorted(map(event_id, sent["exact"])) == sorted(ids)
    assert set(map(event_id, sent["events"])) == set(ids)
    for records in sent.values():
        assert_in_order(records)
    for table, order in (("items", "id"), ("journal", "n, note")):
        query = f"select * from {table} order by {order}"
        assert psql(site.replica, query) == psql(site.pipeline.dsn, query)


def change(site: Site, stop: threading.Event) -> None:
    """Transactions, one after the other."""
    with psycopg.connect(site.pipeline.dsn, autocommit=True) as connection:
        while not stop.wait(0.2):
            turn = next(site.turns)
            work = WORK.format(base=1_000 * turn, turn=turn)
            connection.execute(f"begin; {work}; commit")  # type: ignore[arg-type]


def settle(site: Site) -> None:
    """Return when everything committed so far was delivered."""
    end = flushed(site.pipeline.dsn)

    def positions() -> list[int]:
        cursors = [progress.cursor for progress in site.progress()]
        return [0 if cursor is None else cursor.watermark for cursor in cursors]

    until(
        lambda: min(positions()) >= end,
        every=0.1,
        progress=lambda: (positions(), site.errors()),
    )


def event_ids(pipeline: Pipeline) -> list[str]:
    """Of all changes of the log."""
    with pipeline.open() as opened:
        schemas = opened.schema_log.by_id()
    ids: list[str] = []
    for table in ("items", "journal"):
        rows = read_changes(pipeline, table).where("op <> 'copy'").toArrow()
        ids += [given.event_id for given in changes_of(rows.cast(CHANGES), schemas)]
    return ids


def event_id(record: Read) -> str:
    return json.loads(record.value or b"")["event_id"]


def assert_in_order(sent: list[Read]) -> None:
    """At its first arrival, each change of a key comes after those before it."""
    first = {event_id(record): record for record in reversed(sent)}
    of_keys: dict[bytes | None, list[Read]] = {}
    for record in first.values():
        of_keys.setdefault(record.key, []).append(record)
    for of_key in of_keys.values():
        ordered = sorted(of_key, key=lambda record: (record.partition, record.offset))
        positions = [record.headers["pgstream.position"] for record in ordered]
        assert positions == sorted(positions)
