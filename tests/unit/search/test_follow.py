"""The fields of a live index while its table's columns change."""

from __future__ import annotations

import pytest

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.search.fields import fields_of
from pgstream_dagster.search.follow import follow

CONFIG = IndexConfig(table="public.item")


def column(name: str, attnum: int, value_type: str = "text", missing: str | None = None) -> Column:
    return Column(name, attnum, 25, value_type, missing=missing, value_type=value_type)


def schema(*columns: Column) -> TableSchema:
    every = (column("id", 1, "int8"), *columns)
    return TableSchema(1, 16384, "public", "item", ReplicaIdentity.DEFAULT, every, ("id",))


BEFORE = fields_of(schema(column("name", 2), column("n", 3, "int4")), CONFIG)


def test_same_columns_change_nothing() -> None:
    followed = follow(BEFORE, schema(column("name", 2), column("n", 3, "int4")), CONFIG)
    assert followed.fields == BEFORE
    assert (followed.added, followed.renamed, followed.outdated) == ((), {}, None)


def test_new_column_gets_a_field() -> None:
    followed = follow(
        BEFORE, schema(column("name", 2), column("n", 3, "int4"), column("more", 4)), CONFIG
    )
    assert [field.name for field in followed.added] == ["more"]
    assert followed.outdated is None


def test_new_column_with_a_default_needs_a_reindex() -> None:
    grown = schema(column("name", 2), column("n", 3, "int4"), column("more", 4, missing="x"))
    assert follow(BEFORE, grown, CONFIG).outdated == "column 'more' was added with a default"


def test_renamed_column_keeps_its_field_and_is_found_under_both_names() -> None:
    followed = follow(BEFORE, schema(column("title", 2), column("n", 3, "int4")), CONFIG)
    assert [(field.column, field.name) for field in followed.fields] == [
        ("id", "id"),
        ("title", "name"),
        ("n", "n"),
    ]
    assert followed.renamed.keys() == {"title"}
    assert followed.outdated is None


def test_swapped_names_stay_with_their_columns() -> None:
    followed = follow(BEFORE, schema(column("n", 2), column("name", 3, "int4")), CONFIG)
    assert [(field.column, field.name) for field in followed.fields[1:]] == [
        ("n", "name"),
        ("name", "n"),
    ]
    assert followed.renamed == {}


def test_dropped_column_leaves() -> None:
    followed = follow(BEFORE, schema(column("n", 3, "int4")), CONFIG)
    assert [field.name for field in followed.fields] == ["id", "n"]


def test_column_dropped_and_added_again_gets_a_field_of_its_own() -> None:
    followed = follow(BEFORE, schema(column("name", 2), column("n", 4, "int4")), CONFIG)
    assert [field.name for field in followed.fields] == ["id", "name", "n_4"]


@pytest.mark.parametrize("value_type", ["text", "timestamptz", "int4[]"])
def test_retyped_column_needs_a_reindex(value_type: str) -> None:
    followed = follow(BEFORE, schema(column("name", 2), column("n", 3, value_type)), CONFIG)
    assert followed.outdated == "column 'n' has another type"


def test_only_chosen_columns_are_followed() -> None:
    config = replace_columns(CONFIG, "id", "name")
    before = fields_of(schema(column("name", 2)), config)
    followed = follow(before, schema(column("name", 2), column("more", 4)), config)
    assert followed.added == ()


def replace_columns(config: IndexConfig, *names: str) -> IndexConfig:
    return config.model_copy(update={"columns": names})


def test_default_that_old_documents_have_is_reported_once() -> None:
    grown = schema(column("name", 2), column("n", 3, "int4"), column("more", 4, missing="x"))
    fields = follow(BEFORE, grown, CONFIG).fields
    assert follow(fields, grown, CONFIG).outdated is None
