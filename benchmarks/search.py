"""A re-index against a bare bulk client, and from the commit to a document that a get finds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from opensearchpy import OpenSearch as Client
from opensearchpy import helpers

from benchmarks.latency import Latency, Times, from_commit
from benchmarks.measure import Measured, own
from benchmarks.sources import Bench, bench, insert
from pgstream_dagster.capture.stream import current_lsn, stream
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.embedded.opensearch import RUNS_FAST, OpenSearch
from pgstream_dagster.search.cluster import SearchSettings
from pgstream_dagster.search.index import index
from pgstream_dagster.search.reindex import Reindexed, reindex
from pgstream_dagster.upkeep.setup import setup

HEAP = "2g"
"""Of the node: both sides are bound by it."""

WARM_ROUNDS = 3
"""Two JVMs compile meanwhile: ours and the node's."""

PAGE = 10_000
CHUNK = 2_000
THREADS = 4


def reindexes(major: int, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    """
    (ours: fold of the log and load, `parallel_bulk` of the same documents ready in memory) a round.

    Ours is the load alone: what follows it (the comparison with the fold, the move of the alias)
    has no counterpart in a bulk client.
    """
    with searched(major, "bench") as (on, client):
        insert(on.connection, 1, rows)
        setup(on.pipeline)
        drain(on)
        warm = [reindexed(on) for _ in range(WARM_ROUNDS)][-1]
        bodies = list(documents(client, warm.index))
        for _ in range(rounds):
            done = reindexed(on)
            ours = Measured(rows, done.load_seconds, 0.0)
            yield ours, bulk(client, warm, bodies, on.jvm_pid())


def searchable(major: int, rate: int, seconds: float) -> Latency:
    """Commit to a get by id that finds the document, at `rate` commits a second."""
    with searched(major, "ticks") as (on, client):
        setup(on.pipeline)

        def follow(_sent: Times, _seen: Times, stop: threading.Event) -> None:
            index(on.pipeline, stop=stop)

        def watch(sent: Times, seen: Times, stop: threading.Event) -> None:
            _watch(client, sent, seen, stop)

        return from_commit(
            *(on, rate, seconds, [follow, watch]),
            is_ready=lambda: client.indices.exists_alias(name="ticks"),
            patience=20,
        )


@contextmanager
def searched(major: int, table: str) -> Iterator[tuple[Bench, Client]]:
    """A pipeline with one index, and a client of its cluster."""
    ticks = "create table ticks (id bigint primary key, v text)"
    tables = {} if table == "bench" else {"tables": (ticks,)}
    with bench(major, **tables) as on, OpenSearch("3", heap=HEAP, tuning=RUNS_FAST) as node:
        config = on.pipeline.config.model_copy(
            update={"search": {table: IndexConfig(table=f"public.{table}", keep=0)}}
        )
        pipeline = replace(on.pipeline, config=config, search=SearchSettings(node.url))
        client = Client(node.url, timeout=120, maxsize=8)
        yield replace(on, pipeline=pipeline), client


def drain(on: Bench) -> None:
    """Land everything committed so far."""
    stream(on.pipeline, stop=threading.Event(), until=current_lsn(on.pipeline))


def reindexed(on: Bench) -> Reindexed:
    """One re-index."""
    done = reindex(on.pipeline, "bench")
    assert done is not None
    return done


def documents(client: Client, name: str) -> Iterator[dict[str, Any]]:
    """Every document of an index."""
    for hit in helpers.scan(client, index=name, size=PAGE):
        yield hit["_source"]


def bulk(client: Client, like: Reindexed, bodies: list[dict[str, Any]], jvm_pid: int) -> Measured:
    """The same documents into an index of the same mapping, by opensearch-py's own way."""
    mapping = client.indices.get_mapping(index="bench")
    settings = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}
    body = {"settings": settings, "mappings": next(iter(mapping.values()))["mappings"]}
    client.indices.delete(index="floor", ignore_unavailable=True)
    client.indices.create(index="floor", body=body)
    actions = (
        {
            "_index": "floor",
            "_id": source["id"],
            "version": int(like.delivered),
            "version_type": "external_gte",
            "_source": source,
        }
        for source in bodies
    )

    def work() -> None:
        sent = helpers.parallel_bulk(
            client, actions, thread_count=THREADS, chunk_size=CHUNK, queue_size=THREADS
        )
        assert all(ok for ok, _ in sent)

    return own(work, len(bodies), jvm_pid)


def _watch(
    client: Client, sent: dict[int, float], seen: dict[int, float], ended: threading.Event
) -> None:
    """Ask for what was sent and not seen, in order."""
    following = 0
    while not ended.is_set():
        ids = [str(n) for n in range(following, following + 500) if n in sent]
        if not ids:
            time.sleep(0.002)
            continue
        if not client.indices.exists_alias(name="ticks"):
            continue
        bodies = client.mget(index="ticks", body={"ids": ids}, _source=False)["docs"]
        now = time.monotonic()
        for document in bodies:
            if not document["found"]:
                break
            following = int(document["_id"]) + 1
            seen[following - 1] = now
        time.sleep(0.005)
