"""A lake that fails for a while, and answers that are lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.config import CaptureConfig
from pgstream_dagster.delta.entries import LOG_FOLDER, checksum_name, entry_name
from pgstream_dagster.delta.kernel import Commit, Conflict, Kernel
from pgstream_dagster.errors import CommitFailed, LakeAway, LogDamaged, WriterReplaced
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.setup import setup
from pgstream_dagster.upkeep.status import status
from tests.faults.site import fill, mount
from tests.support.harness import oracle, rows, runner
from tests.support.plugins.cluster import psql
from tests.support.plugins.lake import changes
from tests.support.plugins.wait import until

pytestmark = pytest.mark.slow

TABLE = "create table t (id bigint primary key, x text)"
CAPTURE = CaptureConfig(flush_seconds=0.1, idle_advance_seconds=1, catalog_check_seconds=30)
ROWS = "insert into t select g, 'x' from generate_series({}, {}) g"
FAILURE = CommitFailed("change_log", "503 Slow Down")


def made(dsn: str, folder: Path, *, state: Path | None = None) -> Pipeline:
    psql(dsn, TABLE, "insert into t values (0, 'copied')")
    pipeline = runner.new_pipeline(dsn, folder, capture=CAPTURE)
    pipeline = replace(pipeline, state=state or pipeline.state)
    pipeline.state.mkdir(parents=True, exist_ok=True)
    setup(pipeline)
    return pipeline


def wait_until_landed(pipeline: Pipeline) -> None:
    target = runner.flushed(pipeline.dsn)
    psql(pipeline.dsn, "select pg_logical_emit_message(true, 'test', '')")
    log, app = runner.change_log(pipeline), runner.app(pipeline)
    until(lambda: oracle.watermarks(log, app)[-1] >= target, seconds=runner.END_SECONDS, every=0.1)


def reason(pipeline: Pipeline) -> str:
    return json.loads(pipeline.heartbeat_file.read_text())["reason"] or ""


def positions(pipeline: Pipeline) -> list[Any]:
    log = runner.change_log(pipeline)
    return [c.position for file in rows.active_files(log) for c in oracle.rows(log, file)]


def failing_once(
    monkeypatch: pytest.MonkeyPatch, *, written: bool, error: Exception = FAILURE
) -> list[str]:
    """Make one commit of the log fail, before it is written or after; a list of what has failed."""
    commit, failed = Kernel.append, list[str]()

    def fail(self: Kernel, table: str, *given: Any, **named: Any) -> Commit:
        is_due = table.endswith("change_log") and not failed
        if not is_due:
            return commit(self, table, *given, **named)
        failed.append(table)
        if written:
            commit(self, table, *given, **named)
        raise error

    monkeypatch.setattr(Kernel, "append", fail)
    return failed


@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_a_commit_without_an_answer_is_made_once(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    pipeline = made(dsn, tmp_path)
    with runner.streaming(pipeline):
        failed = failing_once(monkeypatch, written=written)
        psql(dsn, ROWS.format(1, 5))
        wait_until_landed(pipeline)
        psql(dsn, ROWS.format(6, 9))
        wait_until_landed(pipeline)
    assert failed
    assert len(positions(pipeline)) == len(set(positions(pipeline)))
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 10


def test_a_lost_answer_is_no_excuse_for_another_writer(
    lake: Lake, gateway: JavaGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ChangeLog(lake, "shop", gateway)
    log.start(1, Lsn(10))
    writer, other = log.writer(1), log.writer(1)
    failing_once(monkeypatch, written=False)
    with pytest.raises(CommitFailed):
        writer.commit([changes(2, end_lsn=20)], Lsn(20))
    other.commit([changes(2, end_lsn=20)], Lsn(20))  # of the very same progress
    with pytest.raises(WriterReplaced):
        writer.require_current()


def test_a_lost_answer_to_a_commit_of_ours_counts(
    lake: Lake, gateway: JavaGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ChangeLog(lake, "shop", gateway)
    log.start(1, Lsn(10))
    writer = log.writer(1)
    failing_once(monkeypatch, written=True)
    with pytest.raises(CommitFailed):
        writer.commit([changes(2, end_lsn=20)], Lsn(20))
    writer.require_current()
    assert writer.watermark == 20
    writer.commit([changes(2, end_lsn=30)], Lsn(30))


def test_a_commit_that_its_own_second_attempt_meets_counts(
    lake: Lake, gateway: JavaGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store's client that tries again by itself finds the name taken: by its first attempt."""
    log = ChangeLog(lake, "shop", gateway)
    log.start(1, Lsn(10))
    writer = log.writer(1)
    failed = failing_once(monkeypatch, written=True, error=Conflict())
    committed = writer.commit([changes(2, end_lsn=20)], Lsn(20))
    assert failed
    assert (committed.rows, committed.end_lsn, writer.watermark) == (2, 20, 20)
    writer.commit([changes(2, end_lsn=30)], Lsn(30))
    writer.require_current()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=24m", "none", str(place))
    except PermissionError as error:
        pytest.skip(f"no mount here: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def filled(place: Path) -> Callable[[], object]:
    return fill(place).unlink


def make_read_only(place: Path) -> Callable[[], object]:
    def remount(mode: str) -> bool:
        with suppress(PermissionError):  # busy while a file is being written
            mount("-o", f"remount,{mode}", str(place))
            return True
        return False

    until(lambda: remount("ro"))
    return lambda: until(lambda: remount("rw"))


def move(place: Path) -> Callable[[], object]:
    (place / "lake").rename(place / "elsewhere")
    return lambda: (place / "elsewhere").rename(place / "lake")


@pytest.mark.parametrize(
    ("happens", "named"),
    [
        pytest.param(filled, "is full", id="full"),
        pytest.param(make_read_only, "Read-only", id="read-only", marks=pytest.mark.long),
        pytest.param(move, "not at", id="moved away", marks=pytest.mark.long),
    ],
)
def test_the_stream_goes_on_by_itself_when_the_lake_can_be_written_again(
    dsn: str,
    tmp_path: Path,
    small_disk: Path,
    happens: Callable[[Path], Callable[[], object]],
    named: str,
) -> None:
    pipeline = made(dsn, small_disk, state=tmp_path / "state")
    with runner.streaming(pipeline):
        psql(dsn, ROWS.format(1, 5))
        wait_until_landed(pipeline)
        undo = happens(small_disk)
        psql(dsn, ROWS.format(6, 20_000))
        until(lambda: named in reason(pipeline) and "bytes of WAL behind" in reason(pipeline))
        if named == "Read-only":
            assert status(pipeline).watermark is not None
        undo()
        wait_until_landed(pipeline)
    assert len(positions(pipeline)) == len(set(positions(pipeline)))
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 20_001


def test_a_lake_that_is_away_at_the_start_is_not_to_be_set_up(dsn: str, tmp_path: Path) -> None:
    pipeline = made(dsn, tmp_path)
    psql(dsn, ROWS.format(1, 5))
    runner.catch_up(pipeline)
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    with pytest.raises(LakeAway, match="do not run 'pgstream setup'"):
        runner.catch_up(pipeline)
    assert "not at" in str(status(pipeline).problem)
    (tmp_path / "elsewhere").rename(tmp_path / "lake")
    runner.catch_up(pipeline)


def test_a_stream_stops_at_once_while_it_waits_for_the_lake(dsn: str, tmp_path: Path) -> None:
    pipeline = made(dsn, tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, ROWS.format(1, 5))
        wait_until_landed(pipeline)
        (tmp_path / "lake").rename(tmp_path / "elsewhere")
        psql(dsn, ROWS.format(6, 9))
        until(lambda: "not at" in reason(pipeline))
    (tmp_path / "elsewhere").rename(tmp_path / "lake")
    runner.catch_up(pipeline)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 10


def test_an_entry_that_was_confirmed_and_is_torn_is_damage(dsn: str, tmp_path: Path) -> None:
    pipeline = made(dsn, tmp_path)
    psql(dsn, ROWS.format(1, 5))
    runner.catch_up(pipeline)
    psql(dsn, ROWS.format(6, 9))
    runner.catch_up(pipeline)
    log = runner.change_log(pipeline) / LOG_FOLDER
    newest = max(int(path.stem) for path in log.glob("*.json"))
    (log / entry_name(newest)).write_bytes(b"")
    (log / checksum_name(newest)).unlink(missing_ok=True)
    for _ in range(2):
        with pytest.raises(LogDamaged, match="confirmed"):
            runner.catch_up(pipeline)
