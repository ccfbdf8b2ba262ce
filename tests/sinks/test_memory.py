"""
The memory of a sink whose target stands still is bounded, however much waits in the log.

The process of Python alone is measured; Spark's JVM has a bound of its own.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest

from pgstream_dagster import setup
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks import targets
from pgstream_dagster.sinks.base import Verdicts
from tests.support.harness.background import in_thread
from tests.support.harness.runner import flushed, new_pipeline
from tests.support.harness.sink_receiver import with_sinks
from tests.support.plugins.cluster import ALL, psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

MIB = 1 << 20
WAITING = (1024 if ALL else 200) * MIB
QUEUE = 16 * MIB

ROWS_OF_ONE_VALUE = 8_192
"""Their file has a few kB: as rows they are larger than the heap of the JVM."""

FACTOR = 4
"""Growth of the process at most, in queues: the batch, the next one being gathered, and Arrow's."""

FIXED = 48 * MIB
"""What the reader costs without any change: modules, Arrow's pools, Delta's tables."""


class Stalled:
    """Delivers nothing until it may; counts, and keeps nothing."""

    keeps_cursor = False

    def __init__(self) -> None:
        self.may_go_on, self.is_waiting = threading.Event(), threading.Event()
        self.count = 0

    def open(self) -> None:
        """There is nothing to open."""

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        if batch.changes:
            self.is_waiting.set()
        assert self.may_go_on.wait(300)
        self.count += len(batch.changes)
        return {}

    def close(self) -> None:
        """There is nothing to close."""


class Peak:
    """The growth of this process while the block runs."""

    def __enter__(self) -> Self:
        gc.collect()
        pa.default_memory_pool().release_unused()  # else what landing has used hides the growth
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        self._base = self._most = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self._most - self._base

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._most = max(self._most, resident())


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def rows(pipeline: Pipeline, end_lsn: Lsn, count: int, value_bytes: int, *, same: bool) -> pa.Table:
    """Inserts of one transaction that ends there."""
    with pipeline.open() as opened:
        [schema] = [s for s in opened.schema_log.all() if s.name == "t"]
    text = "x" * value_bytes
    notes = [text if same else uuid.uuid4().hex * (value_bytes // 32) for _ in range(count)]
    keys = [str(n) for n in range(count)]
    constant = {
        "epoch": 1,
        "commit_lsn": int(end_lsn) - 8,
        "end_lsn": int(end_lsn),
        "xid": 7,
        "committed_at": 1_700_000_000_000_000,
        "op": "insert",
        "namespace": "public",
        "relation": "t",
        "relation_id": schema.relation_id,
        "schema_id": schema.schema_id,
        "landed_at": 1_700_000_000_000_000,
    }
    columns = {name: [value] * count for name, value in constant.items()}
    columns |= {
        "ordinal": list(range(count)),
        "key": [[key] for key in keys],
        "after": [[("id", k), ("note", n)] for k, n in zip(keys, notes, strict=True)],
    }
    return pa.table(
        {
            field.name: pa.array(columns.get(field.name, [None] * count), field.type)
            for field in CHANGES
        },
        CHANGES,
    )


def land(pipeline: Pipeline, commits: Iterator[tuple[int, int, bool]]) -> int:
    """Commits of (rows, bytes of a value, whether all are the same); how many rows."""
    total, end = 0, flushed(pipeline.dsn)
    for count, value_bytes, same in commits:
        end = Lsn(end + 1_000)
        with pipeline.open() as opened:
            writer = opened.log.writer(1)
            writer.commit([rows(pipeline, end, count, value_bytes, same=same)], end)
            writer.close()
        total += count
    return total


def delivered(pipeline: Pipeline, count: int, monkeypatch: pytest.MonkeyPatch) -> Peak:
    """The memory while a target stands still, and then takes `count` changes."""
    target = Stalled()
    sink = {"stdout": {}, "tables": ["t"], "max_queue_bytes": QUEUE}
    pipeline = with_sinks(pipeline, out=sink)
    monkeypatch.setattr(targets, "target", lambda *_: target)
    with Peak() as peak, in_thread(lambda stop: sinks_run.run(pipeline, stop=stop), "sinks"):
        until(target.is_waiting.is_set, seconds=120)
        target.may_go_on.set()
        until(lambda: target.count == count, seconds=120, progress=lambda: target.count)
    return peak


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        "many transactions",
        pytest.param("one transaction", marks=pytest.mark.long),
        pytest.param("one value", marks=pytest.mark.long),
    ],
)
def test_memory_is_bounded_while_a_target_stands_still(dsn, tmp_path, spark, monkeypatch, kind):
    psql(dsn, "create table t (id bigint primary key, note text)")
    pipeline = new_pipeline(dsn, tmp_path)
    setup(pipeline)
    commits = {
        "many transactions": [(10_000, 1024, False)] * (WAITING // (10 * MIB)),
        "one transaction": [(WAITING // 1024, 1024, False)],
        "one value": [(ROWS_OF_ONE_VALUE, 100 * 1024, True)],
    }[kind]
    count = land(pipeline, iter(commits))
    peak = delivered(pipeline, count, monkeypatch)
    assert peak.growth <= FACTOR * QUEUE + FIXED, f"{peak.growth / MIB:.0f} MiB"


def test_memory_is_bounded_during_the_copy_of_a_large_table(dsn, tmp_path, spark, monkeypatch):
    count = WAITING // 2 // 100_000
    psql(
        dsn,
        "create table t (id bigint primary key, note text)",
        f"insert into t select g, repeat('x', 100000) from generate_series(1, {count}) g",
    )
    pipeline = new_pipeline(dsn, tmp_path)
    setup(pipeline)
    peak = delivered(pipeline, count, monkeypatch)
    assert peak.growth <= FACTOR * QUEUE + FIXED, f"{peak.growth / MIB:.0f} MiB"
