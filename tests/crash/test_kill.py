"""Processes that are killed, stopped and doubled, beside the named steps of `test_failpoints`."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from pgstream_dagster.delta.commit_lock import LOCK_NAME
from pgstream_dagster.delta.entries import LOG_FOLDER
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from tests.support.harness import oracle, rows, runner
from tests.support.harness.case import Case
from tests.support.plugins.cluster import psql
from tests.support.plugins.signals import signal_with_jvm
from tests.support.plugins.wait import until
from tests.support.reference.change import Change

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


def landed(case: Case) -> list[Change]:
    log = runner.change_log(case.pipeline)
    commits = oracle.landed(log, runner.app(case.pipeline))
    return [change for _, changes in commits for change in changes]


def watermark(case: Case) -> Lsn:
    return oracle.watermarks(runner.change_log(case.pipeline), runner.app(case.pipeline))[-1]


@contextmanager
def between_commits(case: Case) -> Iterator[None]:
    """Nobody is in a commit meanwhile: a process stopped in one keeps the lock, as it must."""
    with ExitStack() as stack:
        for path in sorted(runner.change_log(case.pipeline).parent.glob(f"*/{LOG_FOLDER}")):
            file = stack.enter_context((path / LOCK_NAME).open("ab"))
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def wait_until_landed(case: Case) -> None:
    target = runner.flushed(case.dsn)
    until(lambda: watermark(case) >= target, seconds=runner.END_SECONDS, every=0.1)


def compare(case: Case) -> None:
    oracle.assert_log_equals(case.oracle, case.pipeline.lake.change_log, runner.app(case.pipeline))
    rows.assert_log_folds_to_source(case.pipeline, ["accounts"])


@pytest.fixture
def case(dsn: str, tmp_path: Path) -> Case:
    """Set up; nothing is written but what the test writes."""
    case = Case(dsn, tmp_path)
    case.set_up()
    return case


@pytest.mark.long
def test_nothing_of_a_large_transaction_is_there_before_all_of_it(case: Case) -> None:
    """It is several files; the process ends when one of them is written."""
    many = "select g, 'a', g, repeat('x', 50) from generate_series(1, 150000) as g"
    psql(case.dsn, f"insert into accounts {many}")
    case.dies("stream", "land.file:2")
    assert not landed(case)
    runner.catch_up(case.pipeline)
    assert sum(change.op is Op.INSERT for change in landed(case)) == 150_000
    compare(case)


def test_a_stream_asked_to_stop_lands_and_confirms_what_is_complete(case: Case) -> None:
    """P98."""
    with psycopg.connect(case.dsn) as open_one, runner.running("stream", case.pipeline) as stream:
        psql(case.dsn, "insert into accounts values (1, 'a', 1, null)")
        wait_until_landed(case)
        open_one.execute("insert into accounts values (2, 'open', 1, null)")
        psql(case.dsn, "insert into accounts values (3, 'c', 1, null)")
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(runner.END_SECONDS) == 0, runner.output_of("stream", case.pipeline)
    slot = case.pipeline.config.source.slot
    [(confirmed,)] = psql(
        case.dsn,
        f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{slot}'",
    )
    assert Lsn.parse(confirmed) == watermark(case)
    assert {c.key for c in landed(case)} <= {("1",), ("3",)}
    runner.catch_up(case.pipeline)
    compare(case)


@pytest.mark.long
def test_a_second_stream_is_refused_and_the_first_goes_on(case: Case) -> None:
    """P99."""
    with runner.running("stream", case.pipeline) as first:
        psql(case.dsn, "insert into accounts values (1, 'a', 1, null)")
        wait_until_landed(case)
        log = case.pipeline.state / "second.log"
        second = runner.spawn("stream", case.pipeline, log=log)
        until(lambda: "is in use" in log.read_text(), seconds=runner.END_SECONDS)
        psql(case.dsn, "insert into accounts values (2, 'b', 1, null)")  # the first is alive
        wait_until_landed(case)
        assert second.wait(runner.END_SECONDS) == 1
        assert "SlotInUse" in log.read_text()
        assert first.poll() is None
    compare(case)


@pytest.mark.long
def test_a_writer_that_slept_through_its_replacement_writes_nothing(case: Case) -> None:
    """Stopped, replaced, woken again: as after a long pause of its machine."""
    log = case.pipeline.state / "zombie.log"
    with runner.running("stream", case.pipeline, log=log) as zombie:
        psql(case.dsn, "insert into accounts values (1, 'a', 1, null)")
        wait_until_landed(case)
        with between_commits(case):
            signal_with_jvm(zombie, signal.SIGSTOP)
        psql(
            case.dsn,
            "insert into accounts values (2, 'b', 1, null)",
            "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where active"
            f" and slot_name = '{case.pipeline.config.source.slot}'",
        )
        runner.catch_up(case.pipeline)
        psql(case.dsn, "insert into accounts values (3, 'c', 1, null)")
        signal_with_jvm(zombie, signal.SIGCONT)
        assert zombie.wait(runner.END_SECONDS) == 1, log.read_text()
    assert "WriterReplaced" in log.read_text(), log.read_text()
    runner.catch_up(case.pipeline)
    compare(case)
