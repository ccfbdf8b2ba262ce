"""What the commands on search indices print, and their lines of progress."""

from __future__ import annotations

import pytest

from pgstream_dagster.cli import progress as lines
from pgstream_dagster.cli import render
from pgstream_dagster.cli.progress import IndexLine, ReindexLine
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.search.compare import Compared
from pgstream_dagster.search.control import Generation, State
from pgstream_dagster.search.fields import Field
from pgstream_dagster.search.index import Indexed
from pgstream_dagster.search.index_status import AliasStatus, GenerationStatus
from pgstream_dagster.search.reindex import Phase, Reindexed, ReindexProgress
from pgstream_dagster.search.verify import Difference
from pgstream_dagster.values.kinds import Kind

DONE = Reindexed(
    "flights", "flights-000002", "flights-000001", 90_000, 0, Lsn(0x100), 3.0, seconds=65.0
)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr(lines.time, "monotonic", lambda: now[0])
    return now


def progress(documents: int, expected: int | None) -> ReindexProgress:
    return ReindexProgress("flights", "flights-000002", Phase.LOADING, documents, expected, 1.0)


def test_status_has_a_line_per_generation():
    live = GenerationStatus("a-000002", State.LIVE, Lsn(1), 1536, 1200, 3, None)
    kept = GenerationStatus("a-000001", State.KEPT, Lsn(1), 0, 7, 0, "its table was copied again")
    aliases = [AliasStatus("a", "public.a", (live, kept)), AliasStatus("b", "public.b", ())]
    lines = [line.split("  ") for line in render.index_status(aliases).splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["alias", "index", "state", "documents", "lag", "dead letters", "re-index due"],
        ["a", "a-000002", "live", "1,200", "1.5 KB", "3"],
        ["a", "a-000001", "kept", "7", "0 bytes", "0", "its table was copied again"],
        ["b", "none yet"],
    ]


def test_comparison_names_ids_and_the_remedy():
    equal = Compared("a", "a-000001", Lsn(1), Difference(1200, 1200, 0, 0, 0, ()))
    other = Compared("b", "b-000002", Lsn(1), Difference(8, 9, 0, 1, 1, ("4", "7")))
    outdated = Compared("c", "c-000001", Lsn(1), None, "its table was copied again")
    lines = render.compared([equal, other, outdated]).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["a", "a-000001", "1,200", "0", "0", "0", "yes"],
        ["b", "b-000002", "9", "0", "1", "1", "no"],
        ["c", "c-000001", "no"],
    ]
    assert lines[4:] == [
        "b: 4, 7 differ; 'pgstream reindex b' repairs it",
        "c: not compared: its table was copied again",
    ]
    assert [alias.identical for alias in (equal, other, outdated)] == [True, False, False]


def test_reindex_prints_its_rate_and_what_it_replaced():
    assert render.reindexed(DONE) == (
        "flights is on flights-000002, which was on flights-000001: 90,000 documents (30,000/s),"
        " equal to the log, in 1 min 5 s"
    )


def test_first_reindex_replaced_nothing_and_refused_documents_are_reported():
    done = Reindexed("a", "a-000001", None, 0, 2, Lsn(1), load_seconds=0.0, seconds=1.0)
    assert render.reindexed(done) == (
        "a is on a-000001: 0 documents (0/s), equal to the log, in 1 s\n"
        "2 were refused: see 'pgstream index status'"
    )


def test_dry_run_shows_the_mapping():
    fields = (
        Field("seen_at", "seen_at", 1, Kind.TIMESTAMPTZ, is_array=False, mapping={"type": "date"}),
    )
    generation = Generation("a", 0, State.BUILDING, 1, 5, Lsn(1), Lsn(0), fields)
    heads, row = render.planned(generation).splitlines()
    assert heads.split() == ["column", "field", "mapping"]
    assert row.split(maxsplit=2) == ["seen_at", "seen_at", '{"type": "date"}']


def test_indexer_prints_the_position_of_every_index():
    done = Indexed(1234, {"a-000001": Lsn(0x100), "b-000002": Lsn(0x200)})
    assert render.indexed(done) == (
        "wrote 1,234 documents\na-000001 is up to 0/100\nb-000002 is up to 0/200"
    )
    assert render.indexed(Indexed(0)) == "wrote 0 documents"


def test_line_of_the_indexer(clock):
    line = IndexLine()
    assert line() is None
    line.put(Indexed(0))
    assert line() == "0 documents  0/s  no index yet"
    clock[0] = 1.0
    line.put(Indexed(2000, {"a-000001": Lsn(0x100)}))
    assert line() == "2,000 documents  2,000/s  a-000001 0/100"


def test_line_of_a_reindex_has_the_remaining_time(clock):
    line = ReindexLine()
    assert line() is None
    line.put(progress(0, 10_000))
    assert line() == "flights-000002: loading, 0 documents of about 10,000"
    clock[0] = 1.0
    line.put(progress(1_000, 10_000))
    assert line() == (
        "flights-000002: loading, 1,000 documents of about 10,000; 1,000/s, about 9 s left"
    )


@pytest.mark.parametrize("expected", [None, 0, 500, 1_000])
def test_wrong_guess_is_not_shown(clock, expected):
    line = ReindexLine()
    line.put(progress(0, None))
    line()
    clock[0] = 1.0
    line.put(progress(1_000, expected))
    assert line() == "flights-000002: loading, 1,000 documents; 1,000/s"
