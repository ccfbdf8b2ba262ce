"""Versions of a relation, as JSON and as an id."""

from __future__ import annotations

import json
from dataclasses import replace

from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema, named_at

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


def test_of_relations_with_one_name_the_one_that_took_it_last_is_named_last() -> None:
    """A table is dropped, and one that was there before it is renamed to its name."""
    dropped = replace(SCHEMA, relation_id=2)
    former, renamed = replace(SCHEMA, relation_id=1, name="x"), replace(SCHEMA, relation_id=1)
    again = replace(dropped, columns=())
    assert named_at([former, dropped, again, renamed]) == {1: 3, 2: 1}
    assert named_at([renamed, former, dropped, former]) == {1: 1, 2: 2}
