"""Versions of a relation, as JSON and as an id."""

from __future__ import annotations

import json
from dataclasses import replace

from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema

SCHEMA = TableSchema(
    epoch=1,
    relation_id=16_384,
    namespace="public",
    name="orders",
    identity=ReplicaIdentity.DEFAULT,
    columns=(Column("id", 1, 23, "integer", not_null=True, value_type="int4"),),
    key=("id",),
)


def test_a_schema_reads_back_from_its_json() -> None:
    assert TableSchema.from_json(SCHEMA.to_json()) == SCHEMA


def test_a_schema_from_before_value_types_is_read() -> None:
    fields = json.loads(SCHEMA.to_json())
    del fields["columns"][0]["value_type"]
    (column,) = TableSchema.from_json(json.dumps(fields)).columns
    assert column == replace(SCHEMA.columns[0], value_type="")


def test_the_value_type_is_no_part_of_the_schemas_id() -> None:
    columns = (replace(SCHEMA.columns[0], value_type=""),)
    assert replace(SCHEMA, columns=columns).schema_id == SCHEMA.schema_id
