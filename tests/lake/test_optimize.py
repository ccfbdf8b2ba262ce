"""Optimize leaves few large files with exactly the rows there were, while landing continues."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from py4j.java_gateway import JavaGateway
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog, LogWriter
from pgstream_dagster.changelog.optimize import optimize, vacuum
from pgstream_dagster.changelog.tail import Kind, Tail
from pgstream_dagster.delta.commit_lock import CommitLock
from pgstream_dagster.delta.delta_table import DeltaTable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema import layout
from tests.support.harness.background import in_thread
from tests.support.plugins.lake import changes

logger = logging.getLogger(__name__)


@pytest.fixture
def writer(lake: Lake, gateway: JavaGateway):
    log = ChangeLog(lake, "shop", gateway)
    log.start(1, Lsn(1000))
    opened = log.writer(1)
    yield opened
    opened.close()
    log.close()


def land(writer: LogWriter, commits: int, rows: int = 20) -> None:
    for _ in range(commits):
        end = writer.watermark + 100
        relation = f"t{end // 100 % 3}"
        writer.commit([changes(rows, end_lsn=end, relation=relation)], Lsn(end))


def positions(lake: Lake, gateway: JavaGateway) -> Counter[tuple[int, int]]:
    rows = DeltaTable(lake.change_log, gateway).read(layout.CHANGES)
    return Counter(zip(*rows.select(["end_lsn", "ordinal"]).to_pydict().values(), strict=True))


def test_small_files_become_one_with_the_same_rows_sorted(
    lake: Lake, gateway: JavaGateway, spark: SparkSession, writer: LogWriter
):
    land(writer, 30)
    before = DeltaTable(lake.change_log, gateway).read(layout.CHANGES)
    done = optimize(lake.change_log, spark, gateway)
    assert (done.steps, done.removed_files, done.added_files, done.rows) == (1, 30, 1, 600)
    after = DeltaTable(lake.change_log, gateway).read(layout.CHANGES)
    order = [(name, "ascending") for name in ("relation", "commit_lsn", "ordinal")]
    assert after.equals(before.sort_by(order))


def test_a_second_run_finds_nothing_to_do(
    lake: Lake, gateway: JavaGateway, spark: SparkSession, writer: LogWriter
):
    land(writer, 10)
    optimize(lake.change_log, spark, gateway)
    assert optimize(lake.change_log, spark, gateway).steps == 0


@pytest.mark.long
def test_large_files_are_cut_at_the_target_size(
    lake: Lake, gateway: JavaGateway, spark: SparkSession, writer: LogWriter
):
    land(writer, 20, rows=2_000)
    sizes = [file.size for file in DeltaTable(lake.change_log, gateway).files()]
    done = optimize(lake.change_log, spark, gateway, target_bytes=4 * max(sizes))
    assert 2 <= done.added_files <= 6
    assert set(positions(lake, gateway).values()) == {1}


def test_two_at_once_lose_nothing(
    lake: Lake, gateway: JavaGateway, spark: SparkSession, writer: LogWriter
):
    land(writer, 20)
    first, second = DeltaTable(lake.change_log, gateway), DeltaTable(lake.change_log, gateway)
    files = first.files()
    optimize(lake.change_log, spark, gateway)
    assert second.rewrite(files, []) is None  # it would have removed every row
    assert sum(positions(lake, gateway).values()) == 400


@pytest.mark.long
def test_landing_goes_on_after_a_rewrite_and_vacuum(
    lake: Lake, gateway: JavaGateway, spark: SparkSession, writer: LogWriter
):
    """Over checkpoints, and read by Spark, which must agree with Kernel on what was removed."""
    land(writer, 60)
    optimize(lake.change_log, spark, gateway)
    land(writer, 60)
    optimize(lake.change_log, spark, gateway)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"vacuum delta.`{lake.change_log}` retain 0 hours")
    vacuum(lake.change_log, spark)
    land(writer, 3)
    rows = spark.read.format("delta").load(lake.change_log)
    assert rows.count() == rows.select("end_lsn", "ordinal").distinct().count() == 123 * 20
    assert sum(positions(lake, gateway).values()) == 123 * 20
    assert ChangeLog(lake, "shop", gateway).watermark(1) == writer.watermark


def _timed(
    hold: Callable[[CommitLock], AbstractContextManager[None]], held: dict[str, list[float]]
) -> Callable[[CommitLock], AbstractContextManager[None]]:
    @contextmanager
    def hold_and_say(lock: CommitLock) -> Iterator[None]:
        with hold(lock):
            since = time.monotonic()
            yield
            held[threading.current_thread().name].append(time.monotonic() - since)

    return hold_and_say


@pytest.mark.long
@pytest.mark.slow
def test_landing_and_readers_go_on_while_files_are_rewritten(
    lake: Lake,
    gateway: JavaGateway,
    spark: SparkSession,
    writer: LogWriter,
    monkeypatch: pytest.MonkeyPatch,
):
    land(writer, 150)
    held: dict[str, list[float]] = defaultdict(list)  # thread -> seconds
    monkeypatch.setattr(CommitLock, "held", _timed(CommitLock.held, held))
    tail = Tail(lake, "shop", 1)
    start = tail.newest_version()
    pauses: list[float] = []
    tailed: Counter[int] = Counter()

    def keep_landing(stop: threading.Event) -> None:
        while not stop.is_set():
            began = time.monotonic()
            land(writer, 1)
            pauses.append(time.monotonic() - began)
            time.sleep(0.05)

    def keep_reading(stop: threading.Event) -> None:
        at = start
        while not stop.is_set() or at < tail.newest_version():
            tail.wait(0.05)
            for commit in tail.poll(at):
                at = commit.version
                if commit.kind is Kind.LANDING:
                    tailed.update(tail.read(commit).column("end_lsn").to_pylist())

    with in_thread(keep_reading), in_thread(keep_landing, "landing"):
        for _ in range(3):
            optimize(lake.change_log, spark, gateway)
            rows = spark.read.format("delta").load(lake.change_log)
            row = rows.selectExpr("count(*) n", "max(end_lsn) last").first()
            assert row is not None
            assert row.n == (row.last - 1000) // 100 * 20  # whole commits, none missing or twice
    counts = positions(lake, gateway)
    assert set(counts.values()) == {1}
    assert len(counts) == (writer.watermark - 1000) // 100 * 20
    assert set(tailed.values()) == {20}
    assert sum(tailed.values()) == len(pauses) * 20
    pauses.sort()
    rewriting = max(held[threading.current_thread().name])
    landing = sorted(held["landing"])[len(held["landing"]) // 2]
    logger.info("the lock was held: landing p50 %.3f s, rewriting %.3f s", landing, rewriting)
    logger.info(
        "%d landings, p50 %.3f s, max %.3f s", len(pauses), pauses[len(pauses) // 2], pauses[-1]
    )
    assert rewriting < max(1, 8 * landing)  # what landing may wait for, however loaded the machine
