"""How the rows of a query are printed."""

from __future__ import annotations

import csv
import io
import json

from pgstream_dagster.cli.sql import as_csv, as_json, table
from pgstream_dagster.query.query import Result


def result(*rows: tuple[str | None, ...]) -> Result:
    return Result(["id", "a note"], iter(rows))


def test_json_is_an_array_of_objects() -> None:
    lines = list(as_json(result(("1", '"x"'), ("12345678901234567890.5", None))))
    assert lines[0] == '[{"id": 1, "a note": "x"}'
    assert "12345678901234567890.5" in lines[1]
    assert json.loads("\n".join(lines))[1]["a note"] is None
    assert list(as_json(result())) == ["[]"]


def test_csv_distinguishes_null_from_an_empty_text() -> None:
    rows = [("1", None), ("2", ""), ("3", 'say "x",\nor'), ("4", " blank ")]
    text = "\n".join(as_csv(result(*rows)))
    assert text.splitlines()[:3] == ["id,a note", "1,", '2,""']
    read = list(csv.reader(io.StringIO(text)))
    assert [row[1] for row in read[1:]] == ["", "", 'say "x",\nor', " blank "]


def test_table_for_people_is_aligned_and_cut() -> None:
    rows = [("1", None), ("22", "x" * 100), ("3", "line\nbreak"), ("4", "日本"), ("5", "")]
    lines = list(table(result(*rows), 4))
    assert lines[0].rstrip() == "id | a note"
    assert lines[2] == "1  | NULL"
    assert lines[3].endswith("…")
    assert lines[4] == "3  | line\\nbreak"
    assert lines[-1] == "(4 of 5 rows)"
    assert list(table(result(("1", "a")), 9))[-1] == "(1 row)"
