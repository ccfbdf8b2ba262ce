"""`pgstream sql`: the source's rows, the changes column by column, and nothing but the lake."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.cli import commands
from pgstream_dagster.cli.exits import ExitCode
from pgstream_dagster.errors import SqlInvalid, SqlNotAllowed, SqlUnknownName
from pgstream_dagster.query import rendering
from pgstream_dagster.query.query import query
from pgstream_dagster.tables.column_changes import read_column_changes
from tests.readers.conftest import Site, folder
from tests.support.harness import oracle, rows
from tests.support.harness.rows import PINNED

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.long]

FORBIDDEN = (
    "select * from delta_set_transaction_version('{lake}/change_log', 'app', 1)",
    "select * from delta_scan('{lake}/change_log')",
    "select (select max(v) from delta_set_transaction_version('{lake}/ledger', 'a', 1) as t(v))",
    "select * from query('select 1')",
    "select * from query_table('change_log')",
    "select * from read_text('/etc/passwd')",
    "select * from '/etc/passwd'",
    "select * from '{other}'",
    "select * from read_csv('{other}')",
    "copy (select 1) to '{lake}/x.csv'",
    "explain analyze copy (select 1) to '{lake}/x.csv'",
    "attach '{lake}/x.db' as x",
    "create table t as select 1",
    "set enable_external_access = true",
    "install httpfs",
    "select 1; select 2",
    "",
)


def answer(pipeline: Any, text: str, as_text: rendering.Rendering = rendering.text) -> list[Any]:
    """The rows of a query."""
    with query(pipeline, text, as_text) as result:
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


@pytest.fixture
def pgstream(site: Site, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line on the site."""
    monkeypatch.setattr(commands, "read_pipeline", lambda _: site.pipeline)

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(commands.pgstream, ["sql", *arguments], input=stdin)

    return run


def test_rows_are_those_of_the_source(site: Site) -> None:
    for table, names in (("orders", "*"), ('"Many Types"', MANY)):
        answered = answer(site.pipeline, f"select {names} from public.{table}")
        with psycopg.connect(site.dsn) as connection:
            for statement in PINNED:
                connection.execute(statement)
            texts = connection.execute(
                cast("LiteralString", f"select {source_names(names)} from public.{table}")
            )
            columns = [column.name for column in texts.description or []]
            expected = Counter(tuple(row) for row in texts)
        kept = [json.loads(row.get("_rescued") or "{}") for row in answered]
        actual = Counter(
            tuple(rescued.get(name, row[name]) for name in columns)
            for row, rescued in zip(answered, kept, strict=True)
        )
        assert actual == expected


ORDERS = 'id, state, amount, "at"'

MANY = (
    'id, tiny, big, price, huge, note, title, fixed, raw, born, seen, "at", hour, span, key, doc,'
    ' docb, mood, nets, bits, big_note, "Mixed Case", later, _rescued'
)


def source_names(names: str) -> str:
    """The same columns of the source, each as its output function prints it."""
    own = ORDERS if names == "*" else names.replace(", _rescued", "")
    # format() and not a cast: that of inet and char(n) prints something else
    texts = (
        f"case when {name} is not null then format('%s', {name}) end as {name}"
        for name in own.split(", ")
    )
    return ", ".join(texts)


def test_json_has_the_values_of_the_source(site: Site) -> None:
    query_text = 'select id, ints, words, days, docb, ratio, measure from "Many Types" where id < 3'
    answered = answer(site.pipeline, query_text, rendering.json)
    read = {int(row["id"]): {n: v and json.loads(v) for n, v in row.items()} for row in answered}
    assert read[1] | {"docb": None} == {
        "id": 1,
        "ints": [1, 2, None],
        "words": ["new"],
        "days": {
            "lower": "2026-01-01",
            "upper": "2026-02-01",
            "lower_inclusive": True,
            "upper_inclusive": False,
            "is_empty": False,
        },
        "docb": None,
        "ratio": 1.5,
        "measure": 0.1,
    }
    assert (read[2]["ratio"], read[2]["measure"]) == ("NaN", "-Infinity")
    assert read[2]["days"]["is_empty"] is True


def test_command_prints_for_people_and_for_programs(site: Site, pgstream: Any) -> None:
    text = "select state, count(*) as n, sum(amount) as total from orders group by 1 order by 1"
    with psycopg.connect(site.dsn) as connection:
        expected = connection.execute(text).fetchall()
    shown = pgstream(text).stdout.splitlines()
    assert [cell.strip() for cell in shown[0].split("|")] == ["state", "n", "total"]
    assert shown[-1] == f"({len(expected)} rows)"
    assert [
        (row["state"], row["n"], str(row["total"]) if row["total"] else None)
        for row in json.loads(pgstream(text, "--json").stdout, parse_float=str)
    ] == [(state, n, str(total) if total else None) for state, n, total in expected]
    as_csv = pgstream("-", "--csv", stdin=text).stdout.splitlines()
    assert as_csv[1:] == [f"{s or ''},{n},{t or ''}" for s, n, t in expected]
    listed = pgstream().stdout.splitlines()
    assert {"change_log", 'public."Many Types"', "public.change_log_orders"} <= set(listed)


def test_errors_name_what_is_wrong(site: Site, pgstream: Any) -> None:
    with pytest.raises(SqlUnknownName) as unknown:
        answer(site.pipeline, "select * from public.nope join orders using (id)")
    assert (unknown.value.name, "public.orders" in unknown.value.existing) == ("public.nope", True)
    with pytest.raises(SqlInvalid, match="syntax error"):
        answer(site.pipeline, "selec 1")
    with pytest.raises(SqlInvalid, match="statee"):
        answer(site.pipeline, "with o as (from orders) select statee from o")
    with pytest.raises(SqlInvalid, match="nofunction"):
        answer(site.pipeline, "with o as (from orders) select nofunction(id) from o")
    assert pgstream("from orders", "--json", "--csv").exit_code == ExitCode.CONFIGURATION


@pytest.mark.parametrize("text", FORBIDDEN)
def test_nothing_is_written_and_no_other_file_is_read(
    text: str, site: Site, tmp_path: Path
) -> None:
    lake = folder(site.pipeline.lake.uri)
    other = tmp_path / "other.csv"
    other.write_text("secret\n", encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*")}
    with pytest.raises((SqlNotAllowed, SqlInvalid, SqlUnknownName)):
        answer(site.pipeline, text.format(lake=lake, other=other))
    assert {path: path.stat().st_mtime_ns for path in lake.rglob("*")} == before


def test_changes_have_a_column_per_column(site: Site, spark: SparkSession) -> None:
    del spark
    for name, relation in (("orders", "orders"), ('"Many Types"', "Many Types")):
        expected = Counter(expected_changes(site, relation))
        view = name.replace('"', "")
        answered = answer(
            site.pipeline, f'select * from public."change_log_{view}"', rendering.json
        )
        assert Counter(comparable(row) for row in answered) == expected
        frame = read_column_changes(site.pipeline, f"public.{name}")
        texts = frame.select(F.to_json(F.struct("*")))
        from_spark = [json.loads(text) for (text,) in texts.collect()]
        assert Counter(comparable_json(row, frame.columns) for row in from_spark) == expected


def test_a_renamed_column_has_its_older_values(site: Site) -> None:
    answered = answer(
        site.pipeline,
        "select _op, state, _sent from change_log_orders where id = '10'"
        " order by _epoch, _commit_lsn, _ordinal",
    )
    assert [(row["_op"], row["state"]) for row in answered] == [
        ("read", "paid"),
        ("update", "paid"),
    ]
    assert json.loads(answered[0]["_sent"]) == ["id", "state", "amount", "at"]
    [deleted] = answer(
        site.pipeline,
        "select state, _sent from change_log_orders where _op = 'delete' and _key = ['7']",
    )
    assert (deleted["state"], deleted["_sent"]) == (None, "[]")


def expected_changes(site: Site, relation: str) -> list[str]:
    """Each change of the log with its values by the newest names, by attnum."""
    log = oracle.folder_of(site.pipeline.lake.change_log)
    schemas = rows.schemas(oracle.folder_of(site.pipeline.lake.schema_log))
    changes = [c for file in rows.active_files(log) for c in oracle.rows(log, file)]
    of_one = [c for c in changes if c.relation == relation]
    newest = rows.in_order(of_one, schemas)[-1]
    texts = []
    for change in of_one:
        attnums = schemas[change.schema_id].attnums if change.schema_id in schemas else {}
        names = {column.attnum: column.name for column in newest.columns}
        images = [
            None
            if image is None
            else {names[attnums[n]]: v for n, v in image.items() if attnums[n] in names}
            for image in (change.before, change.after)
        ]
        texts.append(
            as_text(change.op.value, change.position, change.key, images[0], images[1] or {})
        )
    return texts


def as_text(op: str, position: Any, key: Any, before: Any, after: dict[str, Any]) -> str:
    """A change as one text, from the view, from Spark or from the files."""
    parts = [op, list(map(int, position)), key and list(key), before, after]
    return json.dumps(parts, sort_keys=True)


def comparable(row: dict[str, Any]) -> str:
    """A row of JSON texts."""
    values = {name: None if value is None else json.loads(value) for name, value in row.items()}
    return comparable_json(values, list(row))


def comparable_json(row: dict[str, Any], names: list[str]) -> str:
    """A row whose nulls may be missing."""
    before = row.get("_before")
    sent, before_sent = row.get("_sent") or [], row.get("_before_sent") or []
    assert all(row.get(name) is None for name in names if name[0] != "_" and name not in sent)
    return as_text(
        row["_op"],
        [row[name] for name in ("_epoch", "_commit_lsn", "_ordinal")],
        row.get("_key"),
        None if before is None else {name: before.get(name) for name in before_sent},
        {name: row.get(name) for name in sent},
    )
