"""The outbox under kills: each committed event is delivered, in order per group; no other is."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, setup
from tests.sinks.outbox_table import TABLES
from tests.support.harness.runner import running
from tests.support.harness.sinks_run import delivering
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

KILLS: Final = 50 if os.environ.get("PGSTREAM_TEST_ALL") else 6

GROUPS: Final = 4

FILE: Final = """
pipeline: {name}
sinks:
  archive:
    outbox: {{stream: 1}}
    files: {{folder: archive}}
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.one_major("newest")
def test_each_committed_event_is_delivered_in_order_whatever_is_killed(
    dsn: str, tmp_path: Path, spark: object
) -> None:
    psql(dsn, *TABLES)
    pipeline, environment = pipeline_in(tmp_path, dsn)
    setup(pipeline)
    chance = random.Random(11)
    with writing(dsn):
        for kill in range(KILLS):
            count = len(delivered(tmp_path)) + chance.randint(1, 200)
            with (
                running("stream", pipeline) as stream,
                delivering(tmp_path, environment, lease_seconds=5.0) as sinks,
            ):
                wait_for_lines(tmp_path, count)
                (stream, sinks)[kill % 2].kill()
    with running("stream", pipeline), delivering(tmp_path, environment, lease_seconds=5.0):
        [(committed,)] = psql(dsn, "select count(*) from pgstream.events where stream_id = 1")
        until(lambda: len({e["id"] for e in delivered(tmp_path)}) >= committed, every=0.5)
    require_exact(dsn, delivered(tmp_path))


def wait_for_lines(folder: Path, count: int) -> None:
    """Until so many lines were written."""
    until(lambda: len(delivered(folder)) >= count, progress=lambda: len(delivered(folder)))


def require_exact(dsn: str, lines: list[Any]) -> None:
    """The events of the stream as the table has them, the first ones of each in their order."""
    first = {line["id"]: line for line in lines}
    query = "select id::text, payload, metadata from pgstream.events where stream_id = 1"
    rows = psql(dsn, query)
    assert {i: (line["payload"], line["metadata"]) for i, line in first.items()} == {
        i: (payload, metadata) for i, payload, metadata in rows
    }
    for group in range(GROUPS):
        numbers = [
            line["payload"]["n"]
            for line in first.values()
            if line["metadata"]["group_id"] == str(group)
        ]
        assert numbers == sorted(numbers)
        assert len(numbers) == len(set(numbers))
    assert not any(line["payload"].get("undone") for line in lines)


@contextmanager
def writing(dsn: str) -> Iterator[None]:
    """Writers commit and roll back, one per group, so that a group's numbers are its order."""
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(dsn, g, stop)) for g in range(GROUPS)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def write(dsn: str, group: int, stop: threading.Event) -> None:
    chance, number = random.Random(group), 0
    insert = "insert into pgstream.events (stream_id, payload, metadata) values (%s, %s, %s)"
    metadata = json.dumps({"group_id": str(group)})
    with psycopg.connect(dsn) as connection:
        while not stop.wait(0.02):
            is_undone = chance.random() < 0.2
            for _ in range(chance.randint(1, 5)):
                number += 1
                payload: dict[str, Any] = {"n": number} | ({"undone": True} if is_undone else {})
                stream = 2 if chance.random() < 0.1 else 1
                connection.execute(insert, (stream, json.dumps(payload), metadata))
                stop.wait(chance.random() * 0.05)  # transactions overlap
            connection.rollback() if is_undone else connection.commit()


def pipeline_in(folder: Path, dsn: str) -> tuple[Pipeline, dict[str, str]]:
    (folder / "pgstream.yaml").write_text(
        FILE.format(name=f"p_{conninfo_to_dict(dsn)['dbname']}"), encoding="utf-8"
    )
    environment = {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(folder / "lake"),
        "PGSTREAM_STATE": str(folder / "state"),
    }
    return Pipeline.from_file(folder / "pgstream.yaml", environment), environment


def delivered(folder: Path) -> list[Any]:
    """The complete lines of the files, in order."""
    lines = list[bytes]()
    for path in sorted((folder / "archive").glob("*.ndjson")):
        lines += path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
