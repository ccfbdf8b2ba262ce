"""
The whole lake is lost: events that were delivered do not come again, and none is missing.

What was delivered is noted on the source by each maintenance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from pgstream_dagster import resnapshot, setup
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.sink_letters import SinkLetters
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks import control
from pgstream_dagster.sinks.base import Refused
from pgstream_dagster.upkeep.maintain_outbox import maintain_outbox
from tests.support.harness.outbox_receiver import SINK, Events, outbox_pipeline
from tests.support.harness.outbox_writers import with_outbox, write, write_in
from tests.support.harness.runner import streaming
from tests.support.harness.sink_receiver import delivering, with_sinks
from tests.support.plugins.cluster import database, psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    return outbox_pipeline(dsn, tmp_path)


def without_lake(pipeline: Pipeline, dsn: str, folder: Path) -> Pipeline:
    """The pipeline with a new lake, and its slot dropped."""
    drop_slot(pipeline, dsn)
    return replace(pipeline, lake=Lake(str(folder / "new")), state=folder / "new-state")


def drop_slot(pipeline: Pipeline, dsn: str) -> None:
    psql(dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")


@contextmanager
def running(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Events]:
    """Stream and sink run; what the sink gets."""
    receiver = Events()
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        yield receiver


def deliver_and_note(pipeline: Pipeline, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Event 1 is written and delivered, and the source has noted it."""
    setup(pipeline)
    with running(pipeline, monkeypatch) as receiver:
        until(lambda: control.sink_status(pipeline)[0].position is not None, every=0.3)
        write(dsn, 1)
        receiver.wait_for_numbers(1)
        maintain_until_noted(pipeline, dsn)


def numbers_after(pipeline: Pipeline, dsn: str, monkeypatch: pytest.MonkeyPatch, last: int):
    """What the sink gets until the event that is written now."""
    with running(pipeline, monkeypatch) as again:
        until(lambda: control.sink_status(pipeline)[0].position is not None, every=0.3)
        write(dsn, last)
        until(lambda: last in again.numbers, progress=lambda: again.numbers)
        return sorted(again.numbers)


@pytest.mark.long
def test_events_that_a_lost_lake_had_delivered_do_not_come_again(
    pipeline, dsn, tmp_path, monkeypatch
) -> None:
    """P64: what came after the last note on the source comes again; nothing is missing."""
    receiver = Events()
    setup(pipeline)
    with (
        delivering(pipeline, monkeypatch, out=receiver),
        streaming(pipeline),
        psycopg.connect(dsn) as slow,
    ):
        write_in(slow, 9)
        write(dsn, 1)
        write(dsn, 2)
        receiver.wait_for_numbers(1, 2)
        maintain_until_noted(pipeline, dsn)
        write(dsn, 3)
        receiver.wait_for_numbers(1, 2, 3)
    lost = without_lake(pipeline, dsn, tmp_path)
    maintain_outbox(lost)  # before there is a log, it must not forget
    again = Events()
    setup(lost)
    with delivering(lost, monkeypatch, out=again), streaming(lost):
        until(lambda: 9 in again.numbers and 3 in again.numbers)
        write(dsn, 4)
        until(lambda: 4 in again.numbers)
        assert sorted(again.numbers) == [3, 4, 9]
        maintain_until_noted(lost, dsn)
        control.replay(lost, "out", "copy")
        until(lambda: len(again.numbers) >= 8, progress=lambda: again.numbers)
    assert sorted(again.numbers[3:]) == [1, 2, 3, 4, 9]


@pytest.mark.long
def test_dead_letters_of_a_lost_lake_come_again(pipeline, dsn, tmp_path, monkeypatch) -> None:
    receiver = Events()
    receiver.planned[1] = [Refused("never")]
    setup(pipeline)
    with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
        write(dsn, 1)
        write(dsn, 2)
        receiver.wait_for_numbers(2)
        for _ in range(3):
            maintain_outbox(pipeline)
    lost = without_lake(pipeline, dsn, tmp_path)
    again = Events()
    setup(lost)
    with delivering(lost, monkeypatch, out=again), streaming(lost):
        again.wait_for_numbers(1, 2)


@pytest.mark.long
def test_sink_that_began_with_what_came_next_gets_what_it_missed(
    pipeline, dsn, tmp_path, monkeypatch
) -> None:
    pipeline = with_sinks(pipeline, out={**SINK, "start": "now"})
    deliver_and_note(pipeline, dsn, monkeypatch)
    write(dsn, 2)
    lost = without_lake(pipeline, dsn, tmp_path)
    setup(lost)
    assert numbers_after(lost, dsn, monkeypatch, 3) == [2, 3]


@pytest.mark.long
def test_notes_of_a_stream_are_not_those_of_the_next_one(
    pipeline, dsn, tmp_path, monkeypatch
) -> None:
    write(dsn, 77, stream=2)
    deliver_and_note(pipeline, dsn, monkeypatch)
    lost = without_lake(pipeline, dsn, tmp_path)
    setup(lost)
    other = with_sinks(lost, out={**SINK, "outbox": {"stream": 2}})
    write(dsn, 78, stream=2)
    with running(other, monkeypatch) as again:
        until(lambda: len(again.numbers) >= 2, progress=lambda: again.numbers)
    assert again.numbers == [77, 78]


@pytest.mark.long
def test_reset_delivers_everything_also_before_the_sink_has_begun(
    pipeline, dsn, tmp_path, monkeypatch
) -> None:
    deliver_and_note(pipeline, dsn, monkeypatch)
    lost = without_lake(pipeline, dsn, tmp_path)
    setup(lost)
    control.reset(lost, "out", "copy")
    assert numbers_after(lost, dsn, monkeypatch, 2) == [1, 2]


@pytest.mark.long
def test_what_was_delivered_before_a_reset_is_not_noted_any_more(
    pipeline, dsn, tmp_path, monkeypatch
) -> None:
    deliver_and_note(pipeline, dsn, monkeypatch)
    control.reset(pipeline, "out", "copy")
    maintain_outbox(pipeline)
    fresh = Events()
    fresh.takes = 0
    with delivering(pipeline, monkeypatch, out=fresh), streaming(pipeline):
        fresh.wait_for_attempts(1)
        maintain_outbox(pipeline)
    lost = without_lake(pipeline, dsn, tmp_path)
    setup(lost)
    assert numbers_after(lost, dsn, monkeypatch, 2) == [1, 2]


@pytest.mark.long
def test_notes_of_another_cluster_are_not_those_of_a_restored_dump(
    pipeline, dsn, monkeypatch
) -> None:
    """Its transaction ids are other ones."""
    write(dsn, 1)
    psql(
        dsn,
        "update pgstream.outbox_version set home = 'another/1'",
        "insert into pgstream.outbox_sinks (pipeline, sink, stream_id, delivered_lsn, seen_at,"
        f" log_id, delivered_before) values ('{pipeline.name}', 'out', 1, '5/0', now(), 'former',"
        " '1000200:1000200:')",
    )
    setup(pipeline)
    assert numbers_after(pipeline, dsn, monkeypatch, 2) == [1, 2]


@pytest.mark.long
def test_notes_of_a_source_are_not_those_of_the_next_one(
    pipeline, postgres, dsn, tmp_path, monkeypatch
) -> None:
    with database(postgres) as other:
        with_outbox(other)
        write(other, 77)  # its transaction id is lower than those of the other one's snapshot
        deliver_and_note(pipeline, dsn, monkeypatch)
        lost = without_lake(pipeline, dsn, tmp_path)
        setup(lost)
        assert numbers_after(lost, dsn, monkeypatch, 2) == [2]
        drop_slot(pipeline, dsn)
        moved = replace(lost, dsn=other)
        resnapshot(moved)
        assert numbers_after(moved, other, monkeypatch, 78) == [77, 78]
        drop_slot(pipeline, other)


@pytest.mark.long
def test_dead_letter_that_is_made_while_it_is_noted_is_no_delivery(
    pipeline, dsn, tmp_path, monkeypatch
) -> None:
    deliver_and_note(pipeline, dsn, monkeypatch)
    write(dsn, 2)
    maintain_outbox(pipeline)  # a snapshot with the event, which waits to be passed
    counts, receiver = SinkLetters.counts, Events()
    receiver.planned[2] = [Refused("never")]

    def refused_meanwhile(letters: SinkLetters):
        monkeypatch.setattr(SinkLetters, "counts", counts)
        before = counts(letters)
        with delivering(pipeline, monkeypatch, out=receiver), streaming(pipeline):
            until(lambda: counts(letters), every=0.3)
        assert not before
        return counts(letters)

    monkeypatch.setattr(SinkLetters, "counts", refused_meanwhile)
    maintain_outbox(pipeline)
    for _ in range(2):
        maintain_outbox(pipeline)
    lost = without_lake(pipeline, dsn, tmp_path)
    setup(lost)
    assert 2 in numbers_after(lost, dsn, monkeypatch, 3)


@pytest.mark.long
def test_outbox_of_an_older_version_ends_no_setup(pipeline, dsn, caplog) -> None:
    psql(
        dsn,
        "alter table pgstream.outbox_sinks drop delivered_before",
        "update pgstream.outbox_version set version = 1",
    )
    setup(pipeline)
    assert "outbox upgrade" in caplog.text


def maintain_until_noted(pipeline: Pipeline, dsn: str) -> None:
    """Until the source has noted that the sink has delivered what was committed at the call."""
    [(xid,)] = psql(dsn, "select pg_current_xact_id()::text")
    query = f"select pg_visible_in_snapshot('{xid}', delivered_before) from pgstream.outbox_sinks"

    def is_noted() -> bool:
        maintain_outbox(pipeline)
        return psql(dsn, query) == [(True,)]

    until(is_noted, every=0.5)
