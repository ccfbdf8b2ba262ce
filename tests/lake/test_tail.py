"""Readers that follow the log see every commit once, in order, and know what it is."""

from __future__ import annotations

import time

import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.changelog.tail import Kind, Tail
from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.delta.entries import LOG_FOLDER, entry_name
from pgstream_dagster.errors import LogGone
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema import layout
from tests.support.harness.background import in_thread
from tests.support.plugins.lake import changes


@pytest.fixture
def log(lake: Lake, gateway: JavaGateway):
    opened = ChangeLog(lake, "shop", gateway)
    opened.start(1, Lsn(1000))
    yield opened
    opened.close()


@pytest.fixture
def writer(log: ChangeLog):
    opened = log.writer(1)
    yield opened
    opened.close()


def entry(lake: Lake, version: int):
    folder = uri.local(uri.child(lake.change_log, LOG_FOLDER))
    assert folder is not None
    return folder / entry_name(version)


def copy(lake: Lake, log: ChangeLog, point: int, relation_id: int = 9) -> None:
    files = [parquet.write(changes(2, end_lsn=point), lake.change_log)]
    log.append_copy(
        files, epoch=1, relation_id=relation_id, consistent_point=Lsn(point), table="a.b"
    )


def test_commits_are_distinguished_by_their_ids(lake: Lake, log: ChangeLog, writer, gateway):
    writer.commit([changes(3, end_lsn=2000), changes(1, end_lsn=2100)], Lsn(2100))
    copy(lake, log, 1500)
    writer.advance(Lsn(2200))
    ChangeLog(lake, "shop2", gateway).start(1, Lsn(7))
    commits = Tail(lake, "shop", 1).poll(-1)
    assert [commit.version for commit in commits] == [0, 1, 2, 3, 4, 5]
    assert [commit.kind for commit in commits] == [
        Kind.OTHER,  # the table's creation
        Kind.LANDING,
        Kind.LANDING,
        Kind.COPY,
        Kind.LANDING,
        Kind.OTHER,
    ]
    assert [commit.watermark for commit in commits] == [
        *(None, Lsn(1000), Lsn(2100), None, Lsn(2200), None)
    ]
    assert (commits[3].relation_id, commits[3].consistent_point) == (9, Lsn(1500))
    assert [len(commit.files) for commit in commits] == [0, 0, 2, 1, 0, 0]


def test_rows_are_those_landed_in_their_order(lake: Lake, writer):
    tables = [changes(3, end_lsn=2000), changes(2, end_lsn=2100)]
    committed = writer.commit(tables, Lsn(2100))
    tail = Tail(lake, "shop", 1)
    (commit,) = tail.poll(committed.version - 1)
    rows = tail.read(commit)
    assert rows.schema.equals(layout.CHANGES)
    assert rows.column("end_lsn").to_pylist() == [2000] * 3 + [2100] * 2
    assert rows.column("ordinal").to_pylist() == [0, 1, 2, 0, 1]
    assert rows.column("after").to_pylist()[1] == [("id", "1"), ("note", None), ("text", "row 1")]
    assert tail.read(tail.poll(-1)[0]).num_rows == 0


def test_polling_at_the_end_gives_nothing_and_then_what_is_new(lake: Lake, writer):
    tail = Tail(lake, "shop", 1)
    at = tail.newest_version()
    assert tail.poll(at) == []
    writer.commit([changes(1, end_lsn=2000)], Lsn(2000))
    assert [commit.version for commit in tail.poll(at)] == [at + 1]


def test_a_waiting_reader_has_the_rows_soon_after_the_commit(lake: Lake, writer):
    tail = Tail(lake, "shop", 1)
    tail.poll(tail.newest_version())
    arrived: list[float] = []

    def read(_: object) -> None:
        at = tail.newest_version()
        for _ in range(5):
            assert tail.wait(300)
            for commit in tail.poll(at):
                assert tail.read(commit).num_rows == 1
                arrived.append(time.monotonic())
                at = commit.version

    committed: list[float] = []
    with in_thread(read):
        for n in range(5):
            writer.commit([changes(1, end_lsn=2000 + n)], Lsn(2000 + n))
            committed.append(time.monotonic())
    delays = sorted(at - done for at, done in zip(arrived, committed, strict=True))
    assert delays[2] < 0.1


def test_wait_ends_in_time_or_with_a_commit(lake: Lake, writer):
    tail = Tail(lake, "shop", 1)
    tail.poll(tail.newest_version())
    assert not tail.wait(0.01)
    writer.advance(Lsn(3000))
    assert tail.wait(0)


def test_a_reader_starts_after_the_last_landing_it_has_read(lake: Lake, log: ChangeLog, writer):
    versions = [writer.commit([changes(1, end_lsn=lsn)], Lsn(lsn)).version for lsn in (2000, 2100)]
    copy(lake, log, 1500)
    tail = Tail(lake, "shop", 1)
    assert tail.version_of(Lsn(2100)) == versions[1]
    assert tail.version_of(Lsn(2099)) == versions[0]
    assert tail.version_of(Lsn(9999)) == versions[1]
    assert tail.version_of(Lsn(5)) == -1
    assert [c.kind for c in tail.poll(versions[1])] == [Kind.COPY]


def test_cleaned_entries_are_gone(lake: Lake, writer):
    for lsn in (2000, 2100, 2200):
        writer.commit([changes(1, end_lsn=lsn)], Lsn(lsn))
    for version in (0, 1, 2):
        entry(lake, version).unlink()
    tail = Tail(lake, "shop", 1)
    assert [commit.version for commit in tail.poll(2)] == [3, 4]
    with pytest.raises(LogGone):
        tail.poll(1)
    with pytest.raises(LogGone):
        tail.version_of(Lsn(2000))


def test_a_file_that_vacuum_took_is_gone(lake: Lake, writer):
    writer.commit([changes(1, end_lsn=2000)], Lsn(2000))
    tail = Tail(lake, "shop", 1)
    (commit,) = tail.poll(tail.newest_version() - 1)
    path = uri.local(commit.files[0])
    assert path is not None
    path.unlink()
    with pytest.raises(LogGone):
        tail.read(commit)


def test_a_torn_entry_is_not_there_yet(lake: Lake, writer):
    writer.commit([changes(1, end_lsn=2000)], Lsn(2000))
    tail = Tail(lake, "shop", 1)
    at = tail.newest_version()
    path = entry(lake, at)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'{"add"')])
    assert tail.poll(at - 1) == []
    path.write_bytes(whole)
    assert len(tail.poll(at - 1)) == 1
