"""The history of a table's schema, from Python and from the command line, on a lake of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster import Pipeline, schema_history
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.ledger import Ledger, PipelineIdentity
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.cli import run
from pgstream_dagster.cli.exits import ExitCode
from pgstream_dagster.errors import BeforeHistory, NoSchemaHistory, NoSuchVersion
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.ddl import DdlEntry, DdlTable
from pgstream_dagster.schema.difference import Aspect
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables.schema_history import differences_between, version_at

OID, SECOND_OID = 16_384, 16_400
ID, AGE = Column("id", 1, 20, "bigint", not_null=True), Column("age", 2, 23, "integer")
AT_US = 1_772_357_412_000_000  # 2026-03-01 09:30:12 UTC

FIRST = TableSchema(1, OID, "public", "orders", ReplicaIdentity.DEFAULT, (ID, AGE), ("id",))
RENAMED = replace(FIRST, columns=(ID, replace(AGE, name="user_age")))
AGAIN = replace(FIRST, relation_id=SECOND_OID)


def command(schema: TableSchema, lsn: int, tag: str, text: str | None, **facts: Any) -> DdlEntry:
    table = DdlTable(
        schema.relation_id, schema.namespace, schema.name, comment=facts.get("comment")
    )
    is_drop = tag == "DROP TABLE"
    description = None if is_drop else table
    return DdlEntry(schema, Lsn(lsn), 0, AT_US, tag, text, is_drop, description)


HISTORY = [
    (FIRST, Lsn(0x100)),
    command(RENAMED, 0x200, "ALTER TABLE", "alter table orders\n  rename column age to user_age"),
    command(RENAMED, 0x300, "COMMENT", "comment on table orders is 'x'", comment="x"),
    command(RENAMED, 0x400, "DROP TABLE", "drop table orders"),
    command(AGAIN, 0x500, "CREATE TABLE", f"create table orders ({'-' * 200})"),
]


@pytest.fixture
def pipeline(lake: Lake, gateway: JavaGateway, tmp_path: Path, monkeypatch) -> Pipeline:
    """A pipeline with a table that was altered, dropped and created again; and one renamed."""
    with closing(Ledger(lake, gateway)) as ledger:
        ledger.record_identity(PipelineIdentity("shop", "7312", "app", "shop", "shop", 1, 1))
    visits = replace(FIRST, relation_id=5, name="visits")
    with closing(SchemaLog(lake, gateway)) as log:
        log.append([*HISTORY, (visits, Lsn(0x100)), (replace(visits, name="calls"), Lsn(0x200))])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGSTREAM_DSN", "host=localhost dbname=app")
    monkeypatch.setenv("PGSTREAM_LAKE", lake.root)
    monkeypatch.delenv("PGSTREAM_CONFIG", raising=False)
    (tmp_path / "pgstream.yaml").write_text("pipeline: shop\n")
    return Pipeline.from_file(tmp_path / "pgstream.yaml")


@pytest.fixture
def pgstream(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command: what it printed, or its message if it fails as expected."""

    def runs(*arguments: str, code: ExitCode = ExitCode.OK) -> str:
        capfd.readouterr()
        ended, printed = run.run(arguments), capfd.readouterr()
        assert ended == code, printed.err
        return printed.out if code is ExitCode.OK else printed.err

    return runs


def test_the_history_has_every_version_of_every_relation_of_the_name(pipeline: Pipeline):
    versions = schema_history(pipeline, "orders")
    assert [(v.number, v.since, v.schema.relation_id) for v in versions] == [
        *((1, 0x100, OID), (2, 0x200, OID), (3, 0x300, OID), (4, 0x400, OID)),
        (5, 0x500, SECOND_OID),
    ]
    assert [v.is_exact for v in versions] == [False, True, True, True, True]
    assert [[d.aspect for d in v.differences] for v in versions] == [
        [Aspect.TABLE_ADDED],
        [Aspect.COLUMN_RENAMED],
        [Aspect.TABLE_COMMENT],
        [Aspect.TABLE_DROPPED],
        [Aspect.TABLE_ADDED],
    ]
    assert versions[0].committed_at is None
    assert str(versions[1].committed_at) == "2026-03-01 09:30:12+00:00"


def test_a_version_is_named_by_its_number_or_a_position(pipeline: Pipeline):
    versions = schema_history(pipeline, "public.orders")
    places = {"1": 1, "5": 5, "0/100": 1, "0/1FF": 1, "0/200": 2, "0/4FF": 4, "FF/0": 5}
    assert {written: version_at(versions, written).number for written in places} == places
    for written in ("0", "6", "x", "0/", "1/2/3", "-1", ""):
        with pytest.raises(NoSuchVersion, match="number from 1 to 5"):
            version_at(versions, written)
    with pytest.raises(BeforeHistory, match=r"begins at 0/100"):
        version_at(versions, "0/FF")


def test_a_table_that_does_not_exist_at_a_position_differs_as_one_that_was_dropped(
    pipeline: Pipeline,
):
    first, _, _, dropped, again = schema_history(pipeline, "orders")
    assert [d.aspect for d in differences_between(first, dropped)] == [Aspect.TABLE_DROPPED]
    assert [d.aspect for d in differences_between(dropped, again)] == [Aspect.TABLE_ADDED]
    assert [d.aspect for d in differences_between(first, again)] == [
        *(Aspect.TABLE_DROPPED, Aspect.TABLE_ADDED)
    ]
    assert differences_between(first, first) == []


def test_positions_are_those_of_the_newest_epoch(
    pipeline: Pipeline, lake: Lake, gateway: JavaGateway
):
    with closing(SchemaLog(lake, gateway)) as log:
        log.append([(replace(FIRST, epoch=2), Lsn(0x80))])
    versions = schema_history(pipeline, "orders")
    assert [v.schema.epoch for v in versions] == [1] * 5 + [2]
    assert version_at(versions, "0/300").number == 6
    with pytest.raises(BeforeHistory):
        version_at(versions, "0/7F")


def test_a_table_is_known_by_its_last_name(pipeline: Pipeline):
    assert [str(d) for v in schema_history(pipeline, "calls") for d in v.differences][1:] == [
        'table "visits" renamed to "calls"'
    ]
    with pytest.raises(NoSchemaHistory, match=r"schema history public\.calls"):
        schema_history(pipeline, "visits")
    with pytest.raises(NoSchemaHistory, match="pgstream status"):
        schema_history(pipeline, "nothing")


def test_the_command_prints_the_history(pgstream: Callable[..., str]):
    lines = pgstream("schema", "history", "orders").splitlines()
    assert lines[:6] == [
        "public.orders: oid 16384, epoch 1",
        "  1  0/100  seen in the rows",
        '     table "public.orders" added: id bigint not null, age integer; key id',
        "  2  0/200  2026-03-01 09:30:12+00:00  ALTER TABLE",
        '     column "age" renamed to "user_age"',
        "     > alter table orders rename column age to user_age",
    ]
    assert "public.orders: oid 16400, epoch 1" in lines
    assert lines[-1].endswith(" ...")
    assert max(map(len, lines)) < 100


def test_the_command_prints_the_history_as_json(pgstream: Callable[..., str]):
    history = json.loads(pgstream("schema", "history", "orders", "--json"))
    assert [version["tag"] for version in history] == [
        *(None, "ALTER TABLE", "COMMENT", "DROP TABLE", "CREATE TABLE")
    ]
    renamed = history[1]
    assert (renamed["since"], renamed["is_exact"], renamed["is_drop"]) == ("0/200", True, False)
    assert renamed["text"] == HISTORY[1].text
    assert renamed["schema"]["columns"][1]["name"] == "user_age"
    assert renamed["differences"] == [
        {
            "aspect": "column renamed",
            "subject": "user_age",
            "attnum": 2,
            "before": "age",
            "after": "user_age",
            "older_rows_show": None,
            "text": 'column "age" renamed to "user_age"',
        }
    ]


def test_the_command_compares_two_versions(pgstream: Callable[..., str]):
    renamed = 'column "age" renamed to "user_age"\n'
    assert pgstream("schema", "diff", "orders", "1", "2") == renamed
    assert pgstream("schema", "diff", "public.orders", "0/100", "0/2FF") == renamed
    assert pgstream("schema", "diff", "calls", "1") == 'table "visits" renamed to "calls"\n'
    assert pgstream("schema", "diff", "orders", "0/210", "2") == "nothing differs\n"
    compared = json.loads(pgstream("schema", "diff", "orders", "3", "--json"))
    assert (compared["from"]["number"], compared["to"]["relation_id"]) == (3, SECOND_OID)
    assert [d["aspect"] for d in compared["differences"]] == ["table dropped", "table added"]


def test_the_command_names_what_helps(pgstream: Callable[..., str]):
    at_fault = ExitCode.CONFIGURATION
    assert "pgstream status" in pgstream("schema", "history", "no", code=ExitCode.AFTER_FIX)
    assert "16/B374D848" in pgstream("schema", "diff", "orders", "0/x", code=at_fault)
    assert "from 1 to 5" in pgstream("schema", "diff", "orders", "1", "9", code=at_fault)
    assert "0/100" in pgstream("schema", "diff", "orders", "0/1", code=ExitCode.AFTER_FIX)
