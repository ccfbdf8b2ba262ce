"""The loop that keeps typed tables current."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.cli.tables import merged_text
from pgstream_dagster.config import parse
from pgstream_dagster.delta.jvm import JvmSettings
from pgstream_dagster.errors import (
    CommitFailed,
    MetastoreNameTaken,
    NoTypedTables,
    TypedNameTaken,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables import run
from pgstream_dagster.tables.approval import HeldTable
from pgstream_dagster.tables.passes import Merged, MergedTable, Step

DONE = Merged(Lsn(9), [MergedTable("public.t", "public.t", Step.MERGED, 1_200, 3, 0.51)])


def pipeline(folder: Path, text: str = "tables: {merge_seconds: 1}") -> Pipeline:
    return Pipeline(parse(f"pipeline: shop\n{text}"), "", Lake(str(folder)), JvmSettings(), folder)


def merging(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event, *outcomes: Merged | Exception
) -> None:
    """Let merges have these outcomes, the last of which ends the loop."""
    left: Iterator[Merged | Exception] = iter(outcomes)

    def merge(_: Pipeline, *, stop: threading.Event) -> Merged:
        outcome = next(left)
        if outcome is outcomes[-1]:
            stop.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(run, "merge_tables", merge)
    monkeypatch.setattr(run, "FIRST_WAIT_SECONDS", 0.001)


def test_an_outage_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, reported = threading.Event(), list[Merged]()
    merging(monkeypatch, stop, CommitFailed("t", "away"), CommitFailed("t", "away"), DONE)
    assert run.run_tables(pipeline(tmp_path), stop=stop, report=reported.append) == DONE
    assert reported == [DONE]


def test_a_name_that_the_metastore_cannot_give_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    name_taken = MetastoreNameTaken("lake.t", "public.t", "another one")
    merging(monkeypatch, stop, replace(DONE, errors=[name_taken]), DONE)
    assert run.run_tables(pipeline(tmp_path), stop=stop) == DONE
    assert "not registered as 'lake.t'" in caplog.text


def test_what_a_person_must_fix_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    merging(monkeypatch, stop, TypedNameTaken("t", ["a.t", "b.t"]))
    with pytest.raises(TypedNameTaken):
        run.run_tables(pipeline(tmp_path), stop=stop)


def test_without_a_section_there_is_nothing_to_keep(tmp_path: Path) -> None:
    with pytest.raises(NoTypedTables, match="tables:"):
        run.run_tables(pipeline(tmp_path, ""), stop=threading.Event())


def test_a_pass_is_shown_table_by_table() -> None:
    assert merged_text(DONE) == (
        "public.t: merged, 3 changes, 1,200 rows, 0.5 s\ntyped tables are at 0/9"
    )
    held = HeldTable("public.t", "public.t", "5f0c", Lsn(7), ("column dropped",))
    assert merged_text(replace(DONE, tables=[], held=[held])) == (
        "nothing has changed\nheld: public.t stays at 0/7, because of changes: column dropped;"
        " 'pgstream tables approve public.t --versions 5f0c' applies them\n"
        "typed tables are at 0/9"
    )
    assert merged_text(Merged(Lsn(9), [])) == "nothing has changed\ntyped tables are at 0/9"
