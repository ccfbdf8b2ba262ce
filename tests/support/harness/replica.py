"""A sink `replica` with a database of its own on the source's server, delivered in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import setup
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks import run as sinks_run
from tests.support.harness.background import in_thread
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until


@pytest.fixture
def environment(replica: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    given = {"REPLICA_DSN": replica, "PGSTREAM_MODIFIER_KEY": "k" * 32}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


def made(dsn: str, folder: Path, environment: dict[str, str], file: str) -> Pipeline:
    """
    A pipeline of its own of a pipeline file, set up.

    Shape:
        file: with `{name}` for the pipeline's name.
    """
    name = f"p_{conninfo_to_dict(dsn)['dbname']}"
    (folder / "pgstream.yaml").write_text(file.format(name=name))
    environment |= {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(folder / "lake"),
        "PGSTREAM_STATE": str(folder / "state"),
    }
    pipeline = Pipeline.from_file(folder / "pgstream.yaml", environment)
    setup(pipeline)
    return pipeline


def set_up(dsn: str, folder: Path, environment: dict[str, str], file: str) -> Pipeline:
    """As `made`, and its sink has the copies."""
    pipeline = made(dsn, folder, environment, file)
    deliver(pipeline, environment)
    return pipeline


@contextmanager
def delivering(pipeline: Pipeline, environment: dict[str, str]) -> Iterator[None]:
    def run(stop: Any) -> object:
        return sinks_run.run(pipeline, ["replica"], stop=stop, environment=environment)

    with in_thread(run, "sinks"):
        yield


def deliver(pipeline: Pipeline, environment: dict[str, str], *, every_table: bool = False) -> None:
    """Until the target has everything that the log has; `every_table`: the sink receives all."""
    with pipeline.open() as opened:
        watermark = opened.require_watermark()
        copies = {oid: int(point) for oid, (point, _) in opened.copied_relations().items()}
    with delivering(pipeline, environment):
        target = environment["REPLICA_DSN"]
        until(lambda: has_received(target, watermark, copies, every_table=every_table), seconds=120)


def has_received(
    target: str, watermark: int, copies: dict[int, int], *, every_table: bool = False
) -> bool:
    cursor = cursor_of(target)
    if cursor is None or cursor.pending is not None or cursor.watermark < watermark:
        return False
    return all(cursor.copies.get(oid) == point for oid, point in copies.items()) or (
        not every_table and cursor.copies.keys() < copies.keys()
    )


def cursor_of(target: str) -> Cursor | None:
    """The cursor that the target shows; `None` before the first."""
    exists = "select to_regclass('pgstream.sink_progress') is not null"
    if psql(target, exists) == [(False,)]:
        return None
    rows = psql(target, "select cursor from pgstream.sink_progress")
    return Cursor.from_json(rows[0][0]) if rows else None
