"""Statements for a target, and what its errors mean, without a server."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from pgstream_dagster.schema.table import ReplicaIdentity
from pgstream_dagster.sinks.postgres.evolve import (
    adopted,
    alterations,
    create_statement,
    new_key,
)
from pgstream_dagster.sinks.postgres.failures import Failure, failure_of
from pgstream_dagster.sinks.postgres.plan import EmptyTables, WriteRows, steps
from pgstream_dagster.sinks.postgres.schema import (
    AfterRows,
    Catalog,
    Existing,
    Leaving,
    SourceSequence,
    SourceTable,
    SourceType,
    is_dropped,
    leaving_sequences,
    masked_columns,
    missing_labels,
    post_data,
    pre_data,
)
from pgstream_dagster.sinks.postgres.takeover import later_name
from pgstream_dagster.sinks.postgres.target import TargetColumn, TargetTable
from tests.support.harness.sink_changes import History, version

ITEMS = version("items", {"id": "integer", "a": "text", "b": "text"})
OTHERS = version("others", {"id": "integer"}, relation_id=2)
MOOD = SourceType("shop", "shop.mood", None, ["low", "it's", "high"], "create type shop.mood ...")


def table_of(*names: str) -> TargetTable:
    columns = tuple(TargetColumn(name, "text", "text") for name in names)
    return TargetTable("public", "items", 1, "r", columns)


def texts(statements: list[psycopg.sql.Composed]) -> list[str]:
    return [statement.as_string(None).removeprefix("alter table ") for statement in statements]


def test_columns_that_exchange_their_names_go_by_way_of_others() -> None:
    first, second, third = ITEMS.columns
    columns = (first, replace(second, name="b"), replace(third, name="a"))
    swapped = replace(ITEMS, columns=columns)
    assert texts(alterations(ITEMS, swapped, table_of("id", "a", "b"))) == [
        '"public"."items" rename column "a" to "pgstream_0"',
        '"public"."items" rename column "b" to "pgstream_1"',
        '"public"."items" rename column "pgstream_0" to "b"',
        '"public"."items" rename column "pgstream_1" to "a"',
    ]


def test_a_drop_and_an_add_of_the_same_name_are_no_rename() -> None:
    first, second, third = ITEMS.columns
    added = replace(third, attnum=4, missing="it's")
    again = replace(ITEMS, columns=(first, second, added))
    assert texts(alterations(ITEMS, again, table_of("id", "a", "b"))) == [
        '"public"."items" drop column "b"',
        '"public"."items" add column "b" text default \'it\'\'s\'',
        '"public"."items" alter column "b" drop default',
    ]


def test_what_the_target_has_already_is_left_out() -> None:
    renamed = replace(ITEMS, columns=(ITEMS.columns[0], replace(ITEMS.columns[1], name="z")))
    assert texts(alterations(ITEMS, renamed, table_of("id", "z"))) == []
    assert adopted(ITEMS, table_of("id", "a", "b", "theirs")) == []


def test_a_table_is_created_with_its_key() -> None:
    assert create_statement(ITEMS).as_string(None) == (
        'create table "public"."items" ("id" integer, "a" text, "b" text, primary key ("id"))'
    )


def test_only_what_is_missing_is_created_in_order() -> None:
    tables = [
        SourceTable(
            1, "shop", "shop.parted", 1, "shop", "parted", " partition by RANGE (id)", None
        ),
        SourceTable(
            *(2, "shop", "shop.one", 1, "shop", "parted", "", "partition of shop.parted X"),
            parent_name="shop.parted",
        ),
        SourceTable(3, "shop", "shop.there", 3, "shop", "there", "", None),
    ]
    numbers = SourceSequence(
        "shop", "shop.n", "create sequence shop.n", "alter ...", None, is_descending=False
    )
    identity = SourceSequence("shop", "shop.i", None, None, 7, is_descending=False)
    columns = {1: ["id integer not null", "m shop.mood"], 3: ["id integer"]}
    catalog = Catalog(tables, [MOOD], [numbers, identity], columns, {1: ["key 1"], 3: ["key 3"]})
    assert pre_data(catalog, Existing({"relation": ["shop.there"]})) == [
        'create schema "shop"',
        "create type shop.mood ...",
        "create sequence shop.n",
        "create table shop.parted (id integer not null, m shop.mood) partition by RANGE (id)",
        "create table shop.one partition of shop.parted X",
        "key 1",
        "alter ...",
    ]


def test_what_fills_only_masked_or_dropped_columns_is_left_out() -> None:
    def sequence(name: str, owner: str, *used_by: str) -> SourceSequence:
        made = f"create sequence {name}"
        values = ("shop", name, made, f"alter {name}", None)
        return SourceSequence(*values, is_descending=False, owner=owner, used_by=used_by)

    leaving = {1: Leaving(dropped=frozenset({"a"}), masked=frozenset({"b"})), 2: Leaving()}
    sequences = [
        sequence("only_a", "1/a", "1/a"),
        sequence("only_b", "1/b", "1/b"),
        sequence("shared", "1/a", "1/a", "2/a"),
        sequence("c", "1/c", "1/c"),
    ]
    left = leaving_sequences(sequences, leaving)
    assert [(s.name, s.owned_by) for s in left] == [("shared", None), ("c", "alter c")]


@pytest.mark.parametrize(
    ("kind", "needs", "other_needs", "masked"),
    [
        ("index", ["a"], [], set[str]()),
        ("unique", ["a", "b"], [], {"a"}),
        ("unique", ["k"], [], set[str]()),
        ("unique", ["k", "a"], [], {"k", "a"}),
        ("condition", ["k"], [], {"k"}),
        ("condition", ["b"], ["x"], {"x"}),
        ("condition", ["b"], ["y"], set[str]()),
    ],
)
def test_a_condition_on_masked_columns_is_left_out(
    kind: str, needs: list[str], other_needs: list[str], masked: set[str]
) -> None:
    item = AfterRows(2, "shop.t", "name", None, needs, "alter", kind, other_needs)
    leaving = Leaving(masked=frozenset({"a", "k"}), key=frozenset({"k"}))
    other = Leaving(masked=frozenset({"x"}), dropped=frozenset({"z"}))
    assert masked_columns(item, leaving, other) == masked
    assert not is_dropped(item, leaving, other)


def test_the_name_that_a_relation_got_is_found_before_and_after_its_next_row() -> None:
    old, other, late = (replace(ITEMS, name=name) for name in ("old", "other", "late"))
    before = [(5, ITEMS), (6, replace(OTHERS, name="x"))]
    assert later_name(before, ITEMS, 10) is None
    assert later_name([*before, (10, old), (20, late)], ITEMS, 10) == ("public", "old")
    assert later_name([*before, (20, old), (30, late)], ITEMS, 10) == ("public", "old")
    assert later_name([(1, other), *before, (20, ITEMS), (30, late)], ITEMS, 10) == (
        "public",
        "late",
    )


def test_labels_are_added_behind_the_one_before() -> None:
    existing = Existing({"type": ["shop.mood"], "label": ["shop.mood/low"]})
    assert missing_labels(Catalog([], [MOOD]), existing) == [
        "alter type shop.mood add value if not exists 'it''s' after 'low'",
        "alter type shop.mood add value if not exists 'high' after 'it''s'",
    ]
    assert missing_labels(Catalog([], [MOOD]), Existing({})) == []


def test_a_foreign_key_waits_for_both_of_its_tables() -> None:
    index = AfterRows(1, "shop.a", "a_idx", None, [], "create index")
    key = AfterRows(3, "shop.a", "a_fkey", 2, [], "alter table")
    there = Existing({"constraint": ["shop.a/a_idx"]})
    assert post_data([index, key], Existing({}), ready={1}) == [index]
    assert post_data([index, key], there, ready={1, 2}) == [key]


def test_changes_of_tables_are_gathered_where_their_order_does_not_count() -> None:
    h = History()
    first, second, third = (
        h.insert(schema, **dict.fromkeys(schema.attnums, "1")) for schema in (ITEMS, OTHERS, ITEMS)
    )
    gathered = [step.changes for step in steps([first, second, third], keeps_order=False)]
    assert gathered == [[first, third], [second]]
    in_order = [step.changes for step in steps([first, second, third], keeps_order=True)]
    assert in_order == [[first], [second], [third]]


def test_the_truncates_of_one_statement_stay_together() -> None:
    h = History()
    both = [h.truncate(ITEMS), h.truncate(OTHERS)]
    h.end()
    later = [h.truncate(ITEMS), h.insert(OTHERS, id="1"), h.copy(ITEMS)]
    groups = list(steps([*both, *later], keeps_order=False))
    assert [(type(group), len(group.changes)) for group in groups] == [
        (EmptyTables, 2),
        (EmptyTables, 1),
        (WriteRows, 1),
        (EmptyTables, 1),
    ]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("23505", Failure.ROW),
        ("22P02", Failure.ROW),
        ("P0001", Failure.ROW),
        ("40001", Failure.LATER),
        ("40P01", Failure.LATER),
        ("53100", Failure.LATER),
        ("53200", Failure.LATER),
        ("53300", Failure.LATER),
        ("55P03", Failure.LATER),
        ("57P01", Failure.LATER),
        ("25006", Failure.LATER),
        ("42501", Failure.RIGHTS),
        ("42703", Failure.SCHEMA),
        ("XX000", Failure.OTHER),
    ],
)
def test_an_error_of_the_target_is_judged_by_its_sqlstate(code: str, failure: Failure) -> None:
    error = psycopg.Error()
    error.sqlstate = code
    assert failure_of(error) is failure


def test_an_error_without_sqlstate_is_of_the_connection_or_of_a_text() -> None:
    assert failure_of(psycopg.OperationalError("closed")) is Failure.LATER
    assert failure_of(psycopg.DataError("NUL")) is Failure.ROW


@pytest.mark.parametrize("identity", ReplicaIdentity)
def test_a_primary_key_moves_with_the_key_only_if_that_is_a_primary_key(
    identity: ReplicaIdentity,
) -> None:
    table = replace(table_of("id", "a", "b"), key_name="items_pkey", key=("id",))
    other = replace(ITEMS, key=("a",), identity=identity)
    key = new_key(ITEMS, other, table)
    is_primary_key = identity in (ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL)
    dropped = ['"public"."items" drop constraint "items_pkey"']
    assert texts(alterations(ITEMS, other, table)) == (dropped if is_primary_key else [])
    added = None if key is None else key.as_string(None)
    expected = 'alter table "public"."items" add primary key ("a")'
    assert added == (expected if is_primary_key else None)
