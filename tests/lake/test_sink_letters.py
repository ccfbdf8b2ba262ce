"""The dead letters of sinks in the lake: what is read of them, and what a merge leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgstream_dagster.changelog.sink_letters import SinkLetter, SinkLetters, SinkLetterState
from pgstream_dagster.changelog.table_specs import create_sinks
from pgstream_dagster.delta import parquet, small_table, uri
from pgstream_dagster.delta.delta_table import DeltaTable

pytestmark = pytest.mark.slow

ROWS = 40
REFUSED, HELD = SinkLetterState.REFUSED, SinkLetterState.HELD


@pytest.fixture
def letters(lake, gateway) -> Iterator[SinkLetters]:
    create_sinks(lake, gateway)
    opened = SinkLetters(lake, gateway)
    yield opened
    opened.close()


def letter(number: int, sink: str = "out", **fields: object) -> SinkLetter:
    content = f"{number}" * 1_000
    made = SinkLetter(
        *(sink, 1, 100 + number, 0, REFUSED, "public", "t", 7, (f"{number}",), None),
        *("no", content, len(content), "rules"),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def contents(letters: SinkLetters, sink: str = "out") -> list[str | None]:
    return [le.change for le in letters.with_content(letters.open(sink))]


def test_open_letters_are_listed_without_contents_and_each_as_it_is_now(letters) -> None:
    first, second, third = letter(1), letter(2), letter(3)
    letters.add([second, first])
    letters.add([third, letter(1, "other")])
    letters.add([first.delivered(), replace(second, state=HELD, change="newer")])
    assert letters.open("out") == [
        replace(second, state=HELD, change=None),
        replace(third, change=None),
    ]
    assert letters.counts() == {
        "out": {REFUSED: 1, HELD: 1},
        "other": {REFUSED: 1},
    }
    assert letters.open("nothing") == []


def test_contents_are_those_of_the_newest_row_and_of_the_letters_asked_for(letters) -> None:
    sent = [letter(number) for number in range(5)]
    letters.add(sent)
    letters.add([letter(1, "other", change="of another sink")])
    letters.add([replace(sent[1], change="newer"), sent[3].delivered()])
    of_copies = [letter(9, relation_id=relation, change=f"{relation}") for relation in (7, 8)]
    letters.add(of_copies)  # at one position of two tables
    assert contents(letters) == [sent[0].change, "newer", sent[2].change, sent[4].change, "7", "8"]
    assert letters.with_content([replace(of_copies[1], change=None)]) == [of_copies[1]]
    assert letters.with_content([]) == []


def test_a_merge_loses_nothing_and_holds_a_part_of_the_rows(letters, monkeypatch) -> None:
    monkeypatch.setattr(parquet, "PIECE_BYTES", 4_000)
    sizes = list[int]()
    write = parquet.FileWriter.write

    def recorded(file: parquet.FileWriter, table: pa.Table) -> None:
        sizes.append(table.nbytes)
        write(file, table)

    for number in range(ROWS):
        letters.add([letter(number)])
    letters.add([letter(0).delivered()])
    before = [le.change for le in letters.with_content(letters.open("out"))]
    monkeypatch.setattr(small_table.parquet.FileWriter, "write", recorded)
    letters.merge()
    assert len(files(letters)) == 1
    assert len(sizes) > 5
    assert contents(letters) == before == [letter(number).change for number in range(1, ROWS)]


def test_a_file_without_newer_columns_is_read(letters, gateway) -> None:
    table = DeltaTable(letters.uri, gateway)
    letters.add([letter(1)])
    [file] = files(letters)
    rows = pq.read_table(file).drop_columns(["rules", "change_bytes"])
    older = parquet.write(rows, letters.uri, bounds=(), name="v0-older.parquet")
    table.refresh()
    table.rewrite(table.files(), [older])
    table.close()
    assert [(le.rules, le.change_bytes) for le in letters.open("out")] == [("", 0)]
    assert contents(letters) == [letter(1).change]
    for number in range(2, 20):
        letters.add([letter(number)])
    letters.merge()
    assert [le.rules for le in letters.open("out")] == ["", *["rules"] * 18]


def files(letters: SinkLetters) -> list[str]:
    names = [uri.local(path) for path in letters._paths()]
    return [str(name) for name in names]


def test_a_lake_without_sinks_has_no_letters(lake, gateway) -> None:
    letters = SinkLetters(lake, gateway)
    assert (letters.open("out"), letters.counts()) == ([], {})
