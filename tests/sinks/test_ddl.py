"""DDL reaches what is made from the log without waiting for a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from pgstream_dagster import Pipeline, setup
from pgstream_dagster.config import IndexConfig, SinkConfig
from pgstream_dagster.search.reindex import reindex
from tests.support.harness import search_pipelines
from tests.support.harness.replica import deliver, environment, set_up
from tests.support.harness.runner import catch_up, new_pipeline, streaming
from tests.support.harness.sink_receiver import Receiver, delivering, with_sinks
from tests.support.plugins.cluster import psql
from tests.support.plugins.search import ask
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

__all__ = ["environment"]  # a fixture

TABLE = (
    "create table t (id bigint primary key, note text)",
    "insert into t values (1, 'one')",
)

FILE = """
pipeline: {name}
source: {{tables: [t]}}
sinks:
  replica:
    postgres: {{dsn_variable: REPLICA_DSN}}
"""


def test_a_sink_receives_ddl_in_order(dsn, tmp_path, spark, monkeypatch):
    psql(dsn, *TABLE)
    sink = {"stdout": {}, "operations": ["read", "insert", "ddl"]}
    pipeline, receiver = with_sinks(new_pipeline(dsn, tmp_path), out=sink), Receiver()
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        receiver.wait_for(1)
        psql(
            dsn,
            "insert into t values (2, 'two')",
            "alter table t add column n int",
            "insert into t values (3, 'three', 3)",
            "alter table t drop column note",
        )
        receiver.wait_for(5)
    ops = [op for op, _ in receiver.ops()]
    assert ops == ["read", "insert", "ddl", "insert", "ddl"]


def test_records_of_ours_include_ddl_unless_the_operations_are_given() -> None:
    kafka = {"bootstrap_servers": "a:9092"}
    ours = SinkConfig.model_validate({"kafka": kafka})
    chosen = SinkConfig.model_validate({"kafka": kafka, "operations": ["insert"]})
    theirs = SinkConfig.model_validate({"kafka": {**kafka, "envelope": "debezium"}})
    assert [("ddl" in config.operations) for config in (ours, chosen, theirs)] == [
        True,
        False,
        False,
    ]


@pytest.fixture
def replicated(dsn: str, tmp_path: Path, spark: object, environment: dict[str, str]) -> Pipeline:
    psql(dsn, *TABLE)
    return set_up(dsn, tmp_path, environment, FILE)


COLUMNS = """
    select attname::text from pg_attribute
    where attrelid = 't'::regclass and attnum > 0 and not attisdropped order by attnum
"""


def test_a_replica_gets_a_column_and_a_name_without_a_row(
    replicated: Pipeline, dsn: str, environment: dict[str, str]
) -> None:
    """pgstream 2, 4, 22; P111, P112."""
    psql(
        dsn,
        'alter table t add column age int default 7, add column "user age" text',
        "alter table t rename column note to remark",
    )
    catch_up(replicated)
    deliver(replicated, environment)
    target = environment["REPLICA_DSN"]
    assert [name for (name,) in psql(target, COLUMNS)] == ["id", "remark", "age", "user age"]
    assert psql(target, "select id, remark, age from t") == [(1, "one", 7)]


def test_an_index_gets_a_field_without_a_row(
    dsn: str, tmp_path: Path, search_node: Any, index_prefix: str
) -> None:
    psql(dsn, *TABLE)
    alias = f"{index_prefix}t"
    pipeline = search_pipelines.made(
        dsn, tmp_path, search_node.url, **{alias: IndexConfig(table="public.t")}
    )
    reindex(pipeline, alias)
    with streaming(pipeline), search_pipelines.indexing(pipeline):
        psql(dsn, "alter table t add column age int")

        def fields() -> dict[str, Any]:
            [index] = ask(search_node, "GET", f"/{alias}/_mapping").values()
            return index["mappings"]["properties"]

        def history() -> list[dict[str, Any]]:
            query = {"query": {"term": {"pipeline": pipeline.name}}, "sort": ["version"]}
            try:
                ask(search_node, "POST", "/pgstream-schema-log/_refresh")
                answer = ask(search_node, "POST", "/pgstream-schema-log/_search", query)
            except requests.HTTPError:  # it is not there yet, or its shard is not
                return []
            return [hit["_source"] for hit in answer["hits"]["hits"]]

        until(lambda: "age" in fields())
        until(lambda: len(history()) == 2)
    assert fields()["age"] == {"type": "integer"}
    copied, altered = history()
    assert (copied["version"], copied["tag"]) == (1, None)
    assert (altered["tag"], altered["text"]) == ("ALTER TABLE", "alter table t add column age int")
    assert [column["name"] for column in altered["schema"]["columns"]] == ["id", "note", "age"]


def test_the_log_has_the_ddl_with_the_description_of_the_table(
    dsn: str, tmp_path: Path, spark: Any
) -> None:
    psql(dsn, *TABLE)
    pipeline = new_pipeline(dsn, tmp_path)
    setup(pipeline)
    psql(dsn, "comment on column t.note is 'said of it'; alter table t add column n int default 1")
    catch_up(pipeline)
    log = spark.read.format("delta").load(pipeline.lake.change_log)
    rows = log.where("op = 'ddl'").orderBy("commit_lsn", "ordinal").collect()
    payloads = [json.loads(row["payload"]) for row in rows]
    assert [payload["tag"] for payload in payloads] == ["COMMENT", "ALTER TABLE"]
    columns = payloads[-1]["table"]["columns"]
    assert [(c["name"], c["comment"], c["missing"]) for c in columns] == [
        ("id", None, None),
        ("note", "said of it", None),
        ("n", None, "{1}"),
    ]
    with pipeline.open() as opened:
        entries = opened.schema_log.entries(1, rows[0]["relation_id"])
    assert [entry.is_exact for entry in entries] == [False, True, True]
