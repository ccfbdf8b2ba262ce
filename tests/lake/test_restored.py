"""Servers that are promoted, or put back to an earlier state, and what the stream makes of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.config import CaptureConfig
from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.errors import SourceBehind, SourceRestored, TimelineForked
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.resnapshot import resnapshot
from pgstream_dagster.upkeep.setup import setup
from pgstream_dagster.upkeep.status import status
from tests.support.harness import oracle, rows, runner
from tests.support.plugins.cluster import OwnServer, psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.slow

CAPTURE = CaptureConfig(flush_seconds=0.1, idle_advance_seconds=1, catalog_check_seconds=30)


@pytest.fixture
def primary(own_postgres: OwnServer) -> Postgres:
    """A server whose files can be copied."""
    if not isinstance(own_postgres, Postgres):
        pytest.skip("its data folder is in a container")
    return own_postgres


@pytest.fixture
def standby(primary: Postgres) -> Iterator[Postgres]:
    """Not started, and its data are still to be copied."""
    server = Postgres(primary.major)
    yield server
    server.close()


def made(dsn: str, folder: Path) -> Pipeline:
    """Set up over one small table."""
    psql(dsn, "create table t (id bigint primary key, x text)", "insert into t values (1, 'copy')")
    pipeline = runner.new_pipeline(dsn, folder, capture=CAPTURE)
    pipeline.state.mkdir(parents=True)
    setup(pipeline)
    return pipeline


def data(server: Postgres) -> Path:
    return (server.folder / "data").resolve()


def copied(server: Postgres, to: Path) -> None:
    """The files of a stopped server, with their owner and modes."""
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", data(server), to], check=True)


def kept(server: Postgres, tmp_path: Path) -> Path:
    """A copy of the server's files as they are now."""
    server.stop()
    copied(server, tmp_path / "kept")
    server.start()
    return tmp_path / "kept"


def put_back(server: Postgres, kept: Path) -> Path:
    """Start the server on files that were kept; where those it had are now."""
    server.stop()
    removed = kept.with_name(f"{kept.name}-removed")
    data(server).rename(removed)
    kept.rename(data(server))
    server.start()
    return removed


def write_past(pipeline: Pipeline, count: int = 100) -> None:
    """Another history than the log's, beyond what it holds."""
    insert(pipeline.dsn, count, "another history")
    assert runner.flushed(pipeline.dsn) > landed(pipeline)


def repaired(pipeline: Pipeline) -> int:
    """The rows of the log, which are the source's, after `resnapshot` and some more."""
    resnapshot(pipeline)
    insert(pipeline.dsn, 2, "after the repair")
    for _ in range(2):
        runner.catch_up(pipeline)
    return rows.assert_log_folds_to_source(pipeline, ["t"], epoch=2)


def stand_by(standby: Postgres, primary: Postgres | None) -> None:
    """Start on the files of a primary, which it follows if one is given."""
    (data(standby) / "standby.signal").touch()
    if primary is not None:
        standby.settings["primary_conninfo"] = make_conninfo(primary.dsn, dbname="")
    standby.start()


def promote(server: Postgres) -> None:
    psql(server.dsn, "select pg_promote()")


def again(server: Postgres) -> None:
    """One more promotion."""
    server.stop()
    stand_by(server, None)
    promote(server)


def insert(dsn: str, count: int, text: str) -> None:
    """Transactions of one row each."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(count):
            connection.execute("insert into t select coalesce(max(id), 0) + 1, %s from t", [text])


def landed(pipeline: Pipeline, *, epoch: int = 1) -> Lsn:
    return Lsn(oracle.watermarks(runner.change_log(pipeline), runner.app(pipeline, epoch))[-1])


@pytest.mark.long
def test_a_promotion_after_the_watermark_is_followed_through_every_later_connection(
    primary: Postgres, standby: Postgres, tmp_path: Path
) -> None:
    pipeline = made(primary.dsn, tmp_path)
    primary.stop()
    copied(primary, data(standby))
    primary.start()
    stand_by(standby, primary)
    insert(primary.dsn, 3, "on the primary")
    runner.catch_up(pipeline)
    replayed = "select pg_last_wal_replay_lsn()::text"
    until(lambda: Lsn.parse(psql(standby.dsn, replayed)[0][0]) >= landed(pipeline))
    primary.stop()
    promote(standby)

    after = replace(pipeline, dsn=standby.dsn)
    for text in ("first connection", "second", "third"):
        insert(after.dsn, 2, text)
        runner.catch_up(after)
    assert setup(after) == []
    assert status(after).problem is None

    again(standby)  # and twice while nothing streams
    insert(after.dsn, 2, "timeline 3")
    again(standby)
    for text in ("timeline 4", "again"):
        insert(after.dsn, 2, text)
        runner.catch_up(after)
    assert rows.assert_log_folds_to_source(after, ["t"]) == 16

    standby.stop()
    primary.start()  # its timeline was left behind
    with pytest.raises(TimelineForked):
        runner.catch_up(pipeline)


@pytest.mark.long
def test_a_promotion_is_followed_by_a_stream_that_goes_on_in_one_process(
    primary: Postgres, tmp_path: Path
) -> None:
    pipeline = made(primary.dsn, tmp_path)
    with runner.streaming(pipeline) as check:

        def wait_until_landed() -> None:
            target = runner.flushed(pipeline.dsn)

            def is_landed() -> bool:
                check()
                return landed(pipeline) >= target

            until(is_landed, seconds=runner.END_SECONDS)

        for number in range(3):
            insert(pipeline.dsn, 2, f"before promotion {number}")
            wait_until_landed()
            again(primary)
        insert(pipeline.dsn, 2, "at last")
        wait_until_landed()
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 9


def test_a_stream_waits_for_a_standby_to_be_promoted(
    primary: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection would outlive the promotion, and the next one take that for a fork."""
    pipeline = made(primary.dsn, tmp_path)
    with runner.streaming(pipeline) as check:

        def is_landed() -> bool:
            check()
            return landed(pipeline) >= target

        for number in range(2):
            insert(pipeline.dsn, 2, f"before promotion {number}")
            target = runner.flushed(pipeline.dsn)
            until(is_landed)
            primary.stop()
            stand_by(primary, None)
            caplog.clear()
            until(lambda: "it is a standby" in caplog.text)
            promote(primary)
        insert(pipeline.dsn, 2, "at last")
        target = runner.flushed(pipeline.dsn)
        until(is_landed)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 7


@pytest.mark.long
@pytest.mark.parametrize("last", ["stream", "copy"])
def test_a_promotion_before_what_the_log_holds_is_refused_until_resnapshot(
    primary: Postgres, standby: Postgres, tmp_path: Path, last: str
) -> None:
    """Also when only a copy is later than the promotion."""
    pipeline = made(primary.dsn, tmp_path)
    runner.catch_up(pipeline)
    primary.stop()
    copied(primary, data(standby))
    primary.start()
    insert(primary.dsn, 3, "never on the standby")
    if last == "stream":
        runner.catch_up(pipeline)
    else:
        snapshot(pipeline, ["public.t"])
    primary.stop()
    stand_by(standby, None)
    promote(standby)

    after = replace(pipeline, dsn=standby.dsn)
    insert(after.dsn, 50, "another history")
    for _ in range(2):
        with pytest.raises(TimelineForked):
            runner.catch_up(after)
    resnapshot(after)
    insert(after.dsn, 2, "after the repair")
    for _ in range(2):
        runner.catch_up(after)
    assert rows.assert_log_folds_to_source(after, ["t"], epoch=2) == 53


@pytest.mark.long
@pytest.mark.parametrize("slot_is", ["behind", "at the restored state"])
def test_a_server_put_back_that_has_written_past_the_watermark_is_refused_until_resnapshot(
    primary: Postgres, tmp_path: Path, slot_is: str
) -> None:
    pipeline = made(primary.dsn, tmp_path)
    insert(pipeline.dsn, 5, "kept")
    if slot_is == "at the restored state":
        runner.catch_up(pipeline)
    earlier = kept(primary, tmp_path)
    insert(pipeline.dsn, 20, "lost")
    runner.catch_up(pipeline)
    put_back(primary, earlier)
    write_past(pipeline)
    before = landed(pipeline)

    for _ in range(2):
        with pytest.raises(SourceRestored, match="put back to an earlier state"):
            runner.catch_up(pipeline)
        insert(pipeline.dsn, 10, "more of it")
    assert landed(pipeline) == before
    problem = status(pipeline).problem
    assert problem is not None
    assert problem.error == "SourceRestored"
    assert repaired(pipeline) == 1 + 5 + 100 + 20 + 2


def test_a_server_put_back_to_before_a_copy_is_refused_until_resnapshot(
    primary: Postgres, tmp_path: Path
) -> None:
    """Nothing that was streamed comes again: only the copy is of what is lost."""
    pipeline = made(primary.dsn, tmp_path)
    runner.catch_up(pipeline)
    earlier = kept(primary, tmp_path)
    insert(pipeline.dsn, 3, "lost")
    [copy] = snapshot(pipeline, ["public.t"])
    put_back(primary, earlier)
    write_past(pipeline)
    assert runner.flushed(pipeline.dsn) > copy.consistent_point
    before = landed(pipeline)

    for _ in range(2):
        with pytest.raises(SourceRestored, match="a copy behind transaction"):
            runner.catch_up(pipeline)
        with pytest.raises(SourceRestored):
            snapshot(pipeline, ["public.t"])
        insert(pipeline.dsn, 10, "more of it")
    assert landed(pipeline) == before
    problem = status(pipeline).problem
    assert problem is not None
    assert problem.error == "SourceRestored"
    assert repaired(pipeline) == 1 + 100 + 20 + 2


@pytest.mark.long
def test_a_server_found_behind_is_refused_also_when_it_has_written_on(
    primary: Postgres, tmp_path: Path
) -> None:
    pipeline = made(primary.dsn, tmp_path)
    earlier = kept(primary, tmp_path)
    insert(pipeline.dsn, 200, "lost")
    runner.catch_up(pipeline)
    put_back(primary, earlier)
    with pytest.raises(SourceBehind):
        runner.catch_up(pipeline)
    write_past(pipeline, 400)
    with pytest.raises(SourceBehind):
        runner.catch_up(pipeline)
    assert repaired(pipeline) == 403


@pytest.mark.long
@pytest.mark.parametrize("address_is", ["the same", "another"])
def test_the_right_server_is_accepted_after_another_was_refused(
    primary: Postgres, standby: Postgres, tmp_path: Path, address_is: str
) -> None:
    """And the refused one stays refused: what a server is decides, not where it answers."""
    pipeline = made(primary.dsn, tmp_path)
    earlier = kept(primary, tmp_path)
    insert(pipeline.dsn, 200, "on the right one")
    runner.catch_up(pipeline)
    if address_is == "the same":
        right, wrong = put_back(primary, earlier), pipeline
    else:
        earlier.rename(data(standby))
        standby.start()
        right, wrong = None, replace(pipeline, dsn=standby.dsn)
    with pytest.raises(SourceBehind):
        runner.catch_up(wrong)
    write_past(wrong, 400)
    with pytest.raises(SourceBehind):
        runner.catch_up(wrong)

    wrong_files = None if right is None else put_back(primary, right)
    insert(pipeline.dsn, 10, "and on")
    for _ in range(2):
        runner.catch_up(pipeline)
    assert status(pipeline).problem is None
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 211

    if wrong_files is not None:
        put_back(primary, wrong_files)
    with pytest.raises(SourceBehind):
        runner.catch_up(wrong)


@pytest.mark.long
def test_a_streamed_transaction_rolled_back_in_part_is_passed_over_when_it_comes_again(
    primary: Postgres, tmp_path: Path
) -> None:
    pipeline = made(primary.dsn, tmp_path)
    psql(
        pipeline.dsn,
        "alter system set logical_decoding_work_mem = '64kB'",
        "select pg_reload_conf()",
    )
    runner.catch_up(pipeline)
    psql(pipeline.dsn, "checkpoint")
    state = data(primary) / "pg_replslot" / pipeline.config.source.slot / "state"
    checkpointed = state.read_bytes()
    with psycopg.connect(pipeline.dsn) as connection:
        connection.execute("select pg_logical_emit_message(true, 'a', 'message')")
        connection.execute("savepoint a")
        connection.execute("insert into t select g, 'no' from generate_series(10, 3000) g")
        connection.execute("rollback to savepoint a")
        connection.execute("insert into t select g, 'yes' from generate_series(10, 3000) g")
    runner.catch_up(pipeline)
    primary.kill()
    state.write_bytes(checkpointed)
    primary.start()
    insert(pipeline.dsn, 1, "after it")
    runner.catch_up(pipeline, seconds=60)
    assert rows.assert_log_folds_to_source(pipeline, ["t"]) == 2993


def test_a_crash_of_the_server_that_puts_the_slot_back_costs_nothing(
    primary: Postgres, tmp_path: Path
) -> None:
    """P97: Postgres keeps a slot's position in memory between checkpoints; all comes again."""
    pipeline = made(primary.dsn, tmp_path)
    psql(pipeline.dsn, "checkpoint")
    state = data(primary) / "pg_replslot" / pipeline.config.source.slot / "state"
    checkpointed = state.read_bytes()
    insert(pipeline.dsn, 5, "landed")
    psql(pipeline.dsn, "alter table t add column y int", "insert into t values (90, 'y', 1)")
    with psycopg.connect(pipeline.dsn) as connection:
        connection.execute("select pg_logical_emit_message(true, 'only', 'a message')")
    runner.catch_up(pipeline)
    before = landed(pipeline)
    primary.kill()
    state.write_bytes(checkpointed)  # the server may have written it in between, for other reasons
    primary.start()
    [(confirmed,)] = psql(
        pipeline.dsn, "select confirmed_flush_lsn::text from pg_replication_slots"
    )
    assert Lsn.parse(confirmed) < before
    psql(pipeline.dsn, "insert into t values (91, 'new', 2)")
    runner.catch_up(pipeline)
    log = runner.change_log(pipeline)
    changes = [change for file in rows.active_files(log) for change in oracle.rows(log, file)]
    positions = [change.position for change in changes]
    assert len(positions) == len(set(positions))
    rows.assert_log_folds_to_source(pipeline, ["t"])


@pytest.mark.long
def test_a_mark_of_a_setup_that_broke_off_says_nothing_of_a_server_put_back(
    primary: OwnServer, tmp_path: Path
) -> None:
    dsn = primary.dsn
    psql(dsn, "create table t (id bigint primary key, x text)", "insert into t values (1, 'copy')")
    pipeline = runner.new_pipeline(dsn, tmp_path, capture=CAPTURE)
    pipeline.state.mkdir(parents=True)
    files = kept(primary, tmp_path)
    for _ in range(4):
        psql(dsn, "select pg_switch_wal()", "insert into t select max(id) + 1, 'x' from t")
    runner.spawn("setup", pipeline, failpoint="setup.slot").wait(runner.END_SECONDS)
    put_back(primary, files)
    assert [copy.table for copy in setup(pipeline)] == ["public.t"]
    psql(dsn, "insert into t values (100, 'x')")
    assert runner.catch_up(pipeline).rows == 1
