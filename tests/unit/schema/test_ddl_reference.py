"""The published JSON Schema of the payload of `ddl` rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import jsonschema
import msgspec
import pytest

from pgstream_dagster.changelog import markers
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.ddl import DdlPayload, DdlTable
from pgstream_dagster.schema.ddl_reference import reference
from tests.support.people import PEOPLE, described

PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "ddl.schema.json"
VALIDATOR: Final = jsonschema.Draft202012Validator(json.loads(reference()))


def test_page_is_what_the_code_generates():
    assert PAGE.read_text(encoding="utf-8") == reference(), "write it again: make docs"


@pytest.mark.parametrize(
    "payload",
    [
        DdlPayload("ALTER TABLE", "alter table people ...", "describe", described(PEOPLE)),
        DdlPayload("DROP TABLE", None, "drop", DdlTable(5, "public", "people")),
    ],
)
def test_what_a_command_did_is_valid(payload: DdlPayload):
    VALIDATOR.validate(json.loads(msgspec.json.encode(payload)))


def test_the_end_of_a_relation_is_valid():
    row = markers.drop(PEOPLE, 2, Lsn(1), 0)
    VALIDATOR.validate(json.loads(row["payload"]))


def test_a_later_member_is_valid_and_a_missing_one_is_not():
    payload = {"tag": "DROP TABLE", "text": None, "event": "drop", "later": 1}
    assert not VALIDATOR.is_valid(payload)
    table = {"relation_id": 5, "namespace": "public", "name": "people", "later": 1}
    VALIDATOR.validate(payload | {"table": table})
    assert not VALIDATOR.is_valid({"drop": False, "epoch": 1})
