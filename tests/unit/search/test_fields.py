"""Fields of an index: names, mappings, what the configuration overrides."""

from __future__ import annotations

from typing import Any

import pytest

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.search.fields import fields_of, mapping_of, unknown_names
from pgstream_dagster.search.types import form_of
from pgstream_dagster.values.kinds import Kind

ALL_COLUMNS = IndexConfig(table="public.t")


def schema(*columns: tuple[str, str] | str) -> TableSchema:
    """Columns by name, attnums from 1; of type text where none is given."""
    named = [(column, "text") if isinstance(column, str) else column for column in columns]
    return TableSchema(
        1,
        16_384,
        "public",
        "t",
        ReplicaIdentity.DEFAULT,
        tuple(
            Column(name, attnum, 25, "", value_type=value_type)
            for attnum, (name, value_type) in enumerate(named, start=1)
        ),
    )


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["id", "Ünï Cödé", "A", "a"], ["id", "Ünï Cödé", "A", "a"]),
        (["a.b", "c\x01d", "e\x9ff"], ["a_b", "c_d", "e_f"]),
        (["_id", "_source", "_rescued", "_mine"], ["_id_", "_source_", "_rescued_", "_mine"]),
        (["a.b", "a_b"], ["a_b_1", "a_b"]),
        (["a_b", "a.b", "a\x01b"], ["a_b", "a_b_2", "a_b_3"]),
        (["a.b", "a_b", "a_b_1"], ["a_b_1_1", "a_b", "a_b_1"]),
        (["_id", "_id_"], ["_id__1", "_id_"]),
        (["x", " "], ["x", " _2"]),
        ([".id"], ["_id_"]),
    ],
)
def test_names_are_safe_and_each_its_own(columns: list[str], names: list[str]) -> None:
    fields = fields_of(schema(*columns), ALL_COLUMNS)
    assert [field.name for field in fields] == names
    assert [field.column for field in fields] == columns


def test_what_is_left_out_changes_no_other_name() -> None:
    relation = schema("a.b", "a_b", "c")
    (field, _) = fields_of(relation, IndexConfig(table="public.t", columns=("a.b", "c")))
    assert field.name == "a_b_1"


def test_columns_of_the_id_get_a_field() -> None:
    config = IndexConfig(table="public.t", columns=("c",), id=("a",))
    assert [field.column for field in fields_of(schema("a", "b", "c"), config)] == ["a", "c"]


@pytest.mark.parametrize(
    ("value_type", "mapping", "kind"),
    [
        ("inet", {"type": "ip"}, Kind.TEXT),
        ("numeric", {"type": "keyword"}, Kind.NUMERIC),
        ("jsonb", {"type": "flattened"}, Kind.JSON),
        ("jsonb", {"type": "keyword"}, Kind.TEXT),
        ("int4range", {"type": "text"}, Kind.TEXT),
        ("vector", {"type": "dense_vector", "dims": 3}, Kind.VECTOR),
    ],
)
def test_a_mapping_of_ones_own_takes_the_place_of_the_tables(
    value_type: str, mapping: dict[str, Any], kind: Kind
) -> None:
    (field,) = fields_of(
        schema(("c", value_type)), IndexConfig(table="public.t", mapping={"c": mapping})
    )
    assert (field.mapping, field.kind) == (mapping, kind)


def test_names_that_the_relation_does_not_have_are_reported_once() -> None:
    mapping = {"a": {}, "x": {}}
    config = IndexConfig(table="public.t", mapping=mapping, columns=("b", "x", "y"), id=("z", "y"))
    assert unknown_names(schema("a", "b"), config) == ("x", "y", "z")
    assert unknown_names(schema("a", "b"), ALL_COLUMNS) == ()


def test_the_mapping_names_every_field_and_the_rescued() -> None:
    fields = fields_of(schema(("id", "int8"), ("tags", "text[]"), ("what", "")), ALL_COLUMNS)
    assert mapping_of(fields) == {
        "dynamic": False,
        "properties": {
            "id": {"type": "long"},
            "tags": {
                "type": "text",
                "fields": {"keyword": {"type": "keyword", "ignore_above": 8191}},
            },
            "what": {"type": "keyword", "ignore_above": 8191},
            "_rescued": {"type": "object", "enabled": False},
        },
    }


def test_arrays_are_of_their_elements_kind() -> None:
    form = form_of("timestamptz[]")
    assert (form.kind, form.is_array) == (Kind.TIMESTAMPTZ, True)
    assert form.mapping == form_of("timestamptz").mapping
