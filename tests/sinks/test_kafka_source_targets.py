"""
Postgres, log, Kafka, log, and from there a search index, a webhook, files and the standard output.

All of them end with the rows of the source, and those that receive changes receive each once, in
the order of the source: updates that leave a large value out, deletes, changes of the key,
truncates, a table without a key, and the reading pipeline away in the middle.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, setup
from pgstream_dagster.consumer.consume import consume
from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.search.index import index
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.control import sink_status
from tests.support.harness.background import in_thread
from tests.support.harness.rows import assert_log_folds_to_source
from tests.support.harness.runner import streaming
from tests.support.harness.search_pipelines import against_log, documents, live_index
from tests.support.harness.sink_log import all_changes
from tests.support.plugins.cluster import psql
from tests.support.plugins.kafka import topics
from tests.support.plugins.wait import until
from tests.support.webhooks import SECRET, Receiver

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

Message: TypeAlias = Mapping[str, Any]

TABLES: Final = ("orders", "events")

MADE: Final = (
    """create table orders (id bigint primary key, state text, amount numeric, paid boolean,
    tags text[], note text)""",
    "alter table orders alter note set storage external",
    "create table events (n int, note text)",
    "alter table events replica identity full",
    """insert into orders select g, 'new', g / 8.0, g % 2 = 0, array['a,b', null, g::text],
    repeat(md5(g::text), 200) from generate_series(1, 60) g""",
    "insert into events select g % 5, 'x' from generate_series(1, 20) g",
)

SHOP: Final = """
pipeline: {name}
source: {{tables: [orders, events]}}
sinks:
  events:
    kafka:
      bootstrap_servers_from: KAFKA
      topic: "{prefix}{{relation}}"
      key: table
      schemas_topic: "{prefix}schemas"
      create: {{partitions: 3}}
      exactly_once: true
      progress_topic: "{prefix}progress"
"""

COPY: Final = """
pipeline: {name}_copy
source:
  kafka:
    bootstrap_servers_from: KAFKA
    topics: ["{prefix}orders", "{prefix}events"]
    schemas_topic: "{prefix}schemas"
capture: {{flush_seconds: 0.1}}
search:
  {alias}: {{table: public.orders}}
sinks:
  hooks:
    webhook:
      secret: SECRET
      allow_private_addresses: true
      subscriptions: {{erp: {{url: "{url}"}}}}
  archive: {{files: {{folder: "{folder}"}}}}
  lines: {{stdout: {{}}}}
"""


@pytest.fixture
def environment(dsn: str, kafka: Any, search_node: Any) -> dict[str, str]:
    return {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_SEARCH_URL": search_node.url,
        "KAFKA": kafka.servers,
        "SECRET": SECRET,
    }


@pytest.fixture
def names(dsn: str, tmp_path: Path, topic_prefix: str, index_prefix: str) -> dict[str, object]:
    """What stands in the pipeline files."""
    return {
        "name": f"p_{conninfo_to_dict(dsn)['dbname']}",
        "prefix": topic_prefix,
        "alias": f"{index_prefix}orders",
        "folder": tmp_path / "archive",
    }


@pytest.mark.long
def test_every_target_of_a_pipeline_on_kafka_has_the_rows_of_the_source(
    dsn: str,
    tmp_path: Path,
    spark: object,
    environment: dict[str, str],
    names: dict[str, object],
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    psql(dsn, *MADE)
    with Receiver() as receiver, ExitStack() as running:
        text = COPY.format(**names, url=receiver.url)
        shop = pipeline(tmp_path / "shop", SHOP.format(**names), environment)
        copy = pipeline(tmp_path / "copy", text, environment)
        setup(shop)
        setup(copy)
        running.enter_context(streaming(shop))
        deliver = running.enter_context(delivering(shop, environment))
        until(
            lambda: deliver() or has_topics(environment["KAFKA"], str(names["prefix"])), every=0.5
        )

        def wait(check: Callable[[], object]) -> None:
            until(
                lambda: any((deliver(), check())) or is_current(dsn, copy, receiver),
                every=0.5,
                progress=lambda: len(receiver.calls),
            )

        with reading(copy, environment) as check:
            change(dsn, 1)
            change(dsn, 2)
            wait(check)
            change(dsn, 3)  # some of it is on its way when they stop
        psql(dsn, "truncate orders", "truncate events")
        change(dsn, 4)
        with reading(copy, environment) as check:
            change(dsn, 5)
            wait(check)
    landed = [change for change in all_changes(copy) if change.op != Op.COPY]
    assert by_row(landed) == by_row(c for c in all_changes(shop) if c.op != Op.COPY)
    assert_log_folds_to_source(replace(copy, dsn=dsn), TABLES)
    assert against_log(copy, str(names["alias"])).identical
    received = {
        "webhook": [call.json for call in receiver.calls],
        "files": list(archive(tmp_path)),
        "stdout": lines(capsysbinary.readouterr().out.splitlines()),
    }
    for name, messages in received.items():
        assert [m["event_id"] for m in messages] == [c.event_id for c in landed], name
        assert rows_of(messages) == rows_of_source(dsn), name


def pipeline(folder: Path, text: str, environment: Mapping[str, str]) -> Pipeline:
    folder.mkdir()
    (folder / "pgstream.yaml").write_text(text)
    lake = {"PGSTREAM_LAKE": str(folder / "lake"), "PGSTREAM_STATE": str(folder / "state")}
    return Pipeline.from_file(folder / "pgstream.yaml", {**environment, **lake})


@contextmanager
def reading(copy: Pipeline, environment: Mapping[str, str]) -> Iterator[Callable[[], object]]:
    """The pipeline on Kafka: it lands, indexes and delivers while the block runs."""
    with (
        in_thread(lambda stop: consume(copy, stop=stop, environment=environment)) as lands,
        in_thread(lambda stop: index(copy, stop=stop)) as indexes,
        delivering(copy, environment) as delivers,
    ):
        yield lambda: any((lands(), indexes(), delivers()))


def delivering(made: Pipeline, environment: Mapping[str, str]) -> Any:
    """The sinks of a pipeline, in a thread."""
    return in_thread(lambda stop: sinks_run.run(made, stop=stop, environment=environment))


def has_topics(servers: str, prefix: str) -> bool:
    return {f"{prefix}{table}" for table in TABLES} <= topics(servers, prefix).keys()


def change(dsn: str, turn: int) -> None:
    """Every kind of change, of rows that earlier turns have changed, too."""
    base = 1_000 * turn
    psql(
        dsn,
        f"""insert into orders select g, 'new', {turn}.25, null, '{{}}',
        repeat(md5(g::text), 200) from generate_series({base}, {base + 30}) g""",
        f"update orders set state = 'paid', paid = true where id % 3 = {turn % 3}",
        f"delete from orders where id between {base + 10} and {base + 15}",
        f"insert into orders (id, state) select {base + 10}, 'again'",
        f"""update orders set id = id + 500, amount = amount + 1
        where id between {base + 20} and {base + 25}""",
        f"""with moved as (delete from orders where id = {base + 1} returning *)
        insert into orders select {base + 11}, state, amount, paid, tags, 'short' from moved""",
        f"insert into events select {turn}, null from generate_series(1, 3)",
        f"update events set note = 'y' where n = {turn} and ctid = (select max(ctid) from events)",
        "delete from events where ctid = (select min(ctid) from events)",
    )


# --- what there is ------------------------------------------------------------------------------


def is_current(dsn: str, copy: Pipeline, receiver: Receiver) -> bool:
    """Whether the index and every sink have what the source has."""
    if rows_of([call.json for call in receiver.calls]) != rows_of_source(dsn):
        return False
    [alias] = copy.config.search
    if live_index(copy, alias) is None:
        return False
    shown = {document["id"]: document["state"] for document in documents(copy, alias).values()}
    if shown != {row["id"]: row["state"] for row in json_rows(dsn, "orders")}:
        return False
    return {status.changes for status in sink_status(copy)} == {len(receiver.calls)}


def by_row(changes: Iterable[Change]) -> dict[object, list[object]]:
    """The changes of each row in their order; of a table without a key, of the whole table."""
    rows: dict[object, list[object]] = {}
    for c in changes:
        op = "insert" if c.op == Op.READ else c.op
        fact = (op, c.key, c.old_key, c.before, c.after)
        for key in {c.key, c.old_key or c.key}:
            rows.setdefault((c.relation, key), []).append(fact)
    return rows


Rows: TypeAlias = dict[str, Counter[str]]


def rows_of(messages: Sequence[Message]) -> Rows:
    """The rows that a receiver has after these messages, each as JSON, and how often."""
    keyed: dict[int, dict[str, Any]] = {}
    others = Counter[str]()
    for m in messages:
        key, old_key = (m[name] and m[name]["id"] for name in ("key", "old_key"))
        if m["op"] == "truncate":
            (keyed if m["relation"] == "orders" else others).clear()
        elif m["relation"] == "orders":
            former = keyed.pop(old_key or key, {})
            if m["op"] != "delete":
                keyed[key] = {**former, **m["after"]} if m["op"] == "update" else m["after"]
        else:
            others += Counter([text(m["after"])] if m["after"] else [])
            others -= Counter([text(m["before"])] if m["before"] else [])
    return {"orders": Counter(map(text, keyed.values())), "events": others}


def rows_of_source(dsn: str) -> Rows:
    return {table: Counter(map(text, json_rows(dsn, table))) for table in TABLES}


def json_rows(dsn: str, table: str) -> list[dict[str, Any]]:
    return [row for (row,) in psql(dsn, f"select to_jsonb(t) from {table} t")]


def text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def archive(folder: Path) -> Iterator[Message]:
    for path in sorted((folder / "archive").glob("*.ndjson")):
        yield from lines(path.read_bytes().splitlines())


def lines(written: Iterable[bytes]) -> list[Message]:
    return [json.loads(line) for line in written]
