"""Which relation each typed table belongs to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.config.tables import OnSchemaChange, TablesConfig, TypedTableConfig
from pgstream_dagster.errors import TypedNameTaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables.assignment import Copied, assigned, table_name, without_histories


def copied(
    relation_id: int, *names: str, at: int = 1, namespace: str = "public", named_at: int = 0
) -> Copied:
    column = Column("id", 1, 23, "integer")
    versions = [
        TableSchema(1, relation_id, namespace, name, ReplicaIdentity.DEFAULT, (column,), ("id",))
        for name in names
    ]
    return Copied(Lsn(at), versions, versions, named_at)


def test_a_relation_has_the_table_of_its_name() -> None:
    relations = {7: copied(7, "orders"), 8: copied(8, "customers")}
    assert assigned(relations, {}, TablesConfig()) == {
        "public.orders": 7,
        "public.customers": 8,
    }


def test_a_table_follows_its_relation_through_a_rename() -> None:
    relations = {7: copied(7, "orders", "sales")}
    assert assigned(relations, {"public.orders": 7}, TablesConfig()) == {"public.orders": 7}


def test_another_relation_takes_the_name_and_the_former_goes_to_its_own() -> None:
    relations = {7: copied(7, "orders", "former"), 9: copied(9, "orders", at=5)}
    assert assigned(relations, {"public.orders": 7}, TablesConfig()) == {
        "public.orders": 9,
        "public.former": 7,
    }


def test_of_a_table_that_was_dropped_and_created_again_the_newer_counts() -> None:
    relations = {9: copied(9, "orders", at=5), 7: copied(7, "orders")}
    assert assigned(relations, {"public.orders": 7}, TablesConfig()) == {"public.orders": 9}


def test_of_a_table_that_was_dropped_and_one_renamed_to_it_the_renamed_counts() -> None:
    """Although it is copied earlier."""
    relations = {9: copied(9, "orders", at=5, named_at=3), 7: copied(7, "x", "orders", named_at=8)}
    assert assigned(relations, {"public.orders": 9}, TablesConfig()) == {"public.orders": 7}


def test_a_table_that_takes_the_name_of_another_one_takes_its_typed_table() -> None:
    """As when a table is made again beside the old one, and renamed to it at the end."""
    config, before = TablesConfig(), {"public.orders": 7, "public.x": 9}
    new = copied(9, "x", "orders", named_at=8)
    dropped = {7: copied(7, "orders"), 9: new}
    assert assigned(dropped, before, config) == {"public.orders": 9}
    assert assigned(dropped, {"public.orders": 9}, config) == {"public.orders": 9}
    renamed = {7: copied(7, "orders", "former", named_at=7), 9: new}
    after = {"public.orders": 9, "public.former": 7}
    assert assigned(renamed, before, config) == assigned(renamed, after, config) == after
    swapped = {7: copied(7, "orders", "x", named_at=9), 9: new}
    assert assigned(swapped, before, config) == {"public.orders": 9, "public.x": 7}


def test_a_table_keeps_its_typed_table_under_a_name_that_is_not_included_but_not_excluded() -> None:
    """The log has a version that was only renamed once, under its newest name."""
    renamed = Copied(Lsn(1), copied(7, "sales").versions, copied(7, "orders", "sales").versions)
    before, include = {"public.orders": 7}, ("public.orders",)
    assert assigned({7: renamed}, before, TablesConfig(include=include)) == before
    excluded = TablesConfig(exclude=("public.sales",))
    assert assigned({7: renamed}, before, excluded) == {}


def test_a_renamed_table_keeps_its_options_and_its_policy() -> None:
    held = TypedTableConfig(
        columns={"payload": ColumnTypes(json="variant")}, on_schema_change=OnSchemaChange.HOLD
    )
    config = TablesConfig(types={"public.orders": held, "public.other": TypedTableConfig()})
    renamed = copied(7, "orders", "x", "sales").names
    assert renamed == ["public.sales", "public.x", "public.orders"]
    assert config.columns_of(*renamed) == held.columns
    assert config.on_schema_change_of(*renamed) is OnSchemaChange.HOLD
    assert config.columns_of(*copied(7, "orders", "other").names) == {}
    assert config.on_schema_change_of("public.y") is OnSchemaChange.APPLY


def test_include_and_exclude_select_by_name() -> None:
    relations = {7: copied(7, "orders"), 8: copied(8, "audit"), 9: copied(9, "x", namespace="app")}
    config = TablesConfig(include=("public.*",), exclude=("public.audit",))
    assert assigned(relations, {}, config) == {"public.orders": 7}


def test_a_wildcard_does_not_stand_for_our_own_schema() -> None:
    relations = {7: copied(7, "events", namespace="pgstream")}
    assert assigned(relations, {}, TablesConfig()) == {}
    config = TablesConfig(include=("pgstream.*",))
    assert assigned(relations, {}, config) == {"pgstream.events": 7}


def test_a_renamed_table_that_is_excluded_by_its_former_name_stays_out() -> None:
    relations = {7: copied(7, "audit", "audit_old")}
    config = TablesConfig(include=("public.orders",))
    assert assigned(relations, {"public.audit": 7}, config) == {}


def test_two_tables_of_one_name_are_refused() -> None:
    relations = {7: copied(7, "orders"), 8: copied(8, "orders", namespace="app")}
    with pytest.raises(TypedNameTaken):
        assigned(relations, {}, TablesConfig(name="{relation}"))


def test_a_table_that_was_dropped_takes_no_name_from_another_one() -> None:
    config = TablesConfig(name="{relation}")
    dropped = replace(copied(7, "orders", named_at=9), is_dropped=True)
    relations = {7: dropped, 8: copied(8, "orders", namespace="app", named_at=3)}
    assert assigned(relations, {"orders": 7}, config) == {"orders": 8}
    assert assigned({7: dropped}, {"orders": 7}, config) == {"orders": 7}
    both = {7: dropped, 8: replace(relations[8], is_dropped=True)}
    assert assigned(both, {}, config) == {"orders": 7}


@pytest.mark.parametrize(
    ("relation", "name"),
    [("orders", "public.orders"), ("a b/..", "public.a~20b~2f.."), ("Ä~", "public.~c4~7e")],
)
def test_the_name_of_a_table_is_that_of_a_folder(relation: str, name: str) -> None:
    assert table_name("{namespace}.{relation}", "public", relation) == name


@pytest.mark.parametrize(("relation", "name"), [("..", "~2e."), ("_t", "~5ft")])
def test_no_table_is_hidden_or_outside(relation: str, name: str) -> None:
    assert table_name("{relation}", "public", relation) == name


@pytest.mark.parametrize("name", ["{namespace}", "{other}.{relation}", "{relation", "x"])
def test_a_template_names_the_relation(name: str) -> None:
    with pytest.raises(ValueError, match="must contain"):
        TablesConfig(name=name)


def test_a_history_is_no_typed_table_where_histories_are_asked_for() -> None:
    folders = ["public.a", "public.a__history", "public.b", "public.c__history"]
    asked = TablesConfig(history=("public.*",))
    assert without_histories(folders, asked) == ["public.a", "public.b", "public.c__history"]
    assert without_histories(folders, TablesConfig()) == folders
    other = TablesConfig(name="{relation}", history=("a",), history_name="past_{relation}")
    assert without_histories(["a", "past_a"], other) == ["a"]
