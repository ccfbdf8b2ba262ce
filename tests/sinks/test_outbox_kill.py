"""The outbox under kills: each committed event is delivered, in order per group; no other is."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any, Final

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, setup
from tests.support.harness.outbox_writers import (
    committed,
    require_groups_in_order,
    with_outbox,
    writing,
)
from tests.support.harness.runner import running
from tests.support.harness.sinks_run import delivering
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

KILLS: Final = 50 if os.environ.get("PGSTREAM_TEST_ALL") else 6

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
    """P56."""
    with_outbox(dsn)
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
    first = {line["id"]: line["payload"] for line in reversed(lines)}
    assert first == committed(dsn)
    seen = dict.fromkeys(line["id"] for line in lines)
    require_groups_in_order([first[event_id] for event_id in seen])


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
