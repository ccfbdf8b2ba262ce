"""What differs between two versions of a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgstream_dagster.schema.ddl import DdlTable, PartitionParent
from pgstream_dagster.schema.difference import Aspect, Difference, differences
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from tests.support.people import AGE, ID, NAME, PEOPLE, described


def people(*columns: Column) -> TableSchema:
    return replace(PEOPLE, columns=columns)


def sentences(*pair: TableSchema | None) -> list[str]:
    before, after = pair
    return [str(difference) for difference in differences(before, after)]


def test_no_table_before_or_after_differs_in_nothing():
    """Case 21: a null event gives an empty difference."""
    assert differences(None, None) == []
    assert differences(PEOPLE, PEOPLE) == []


def test_a_dropped_table_is_one_difference():
    """Case 21: DROP TABLE removes one."""
    [difference] = differences(PEOPLE, None)
    assert (difference.aspect, difference.subject) == (Aspect.TABLE_DROPPED, "public.people")
    assert str(difference) == 'table "public.people" dropped'


def test_a_created_table_is_one_difference():
    """Case 21: CREATE TABLE, CREATE TABLE AS and SELECT INTO add one."""
    [difference] = differences(None, PEOPLE)
    assert difference.aspect is Aspect.TABLE_ADDED
    assert str(difference) == (
        'table "public.people" added: id bigint not null, name text, age integer; key id'
    )


def test_a_column_whose_name_has_a_space_is_added():
    """Case 22: ADD COLUMN "user age"."""
    added = replace(AGE, name="user age")
    assert differences(people(ID, NAME), people(ID, NAME, added)) == [
        Difference(Aspect.COLUMN_ADDED, "user age", 3, after="integer")
    ]
    assert sentences(people(ID, NAME), people(ID, NAME, added)) == [
        'column "user age" added: integer'
    ]


def test_a_dropped_column_has_its_name_alone():
    """Case 23: DROP COLUMN age; the text of the command is never read."""
    [difference] = differences(PEOPLE, people(ID, NAME))
    assert (difference.aspect, difference.subject, difference.attnum) == (
        *(Aspect.COLUMN_DROPPED, "age", 3),
    )
    assert str(difference) == 'column "age" dropped, it was integer'


@pytest.mark.parametrize("name", ["user_age", "user age", 'with "quotes"', "{age}", "Größe"])
def test_a_renamed_column_keeps_its_identity(name: str):
    """Case 24: RENAME COLUMN age TO user_age."""
    after = people(ID, NAME, replace(AGE, name=name))
    assert differences(PEOPLE, after) == [
        Difference(Aspect.COLUMN_RENAMED, name, 3, before="age", after=name)
    ]
    assert sentences(PEOPLE, after) == [f'column "age" renamed to "{name}"']


def test_an_added_column_has_its_default_and_what_older_rows_show():
    """P111: ADD COLUMN email."""
    email = Column("email", 4, 25, "text", not_null=True, default="'?'::text", missing="?")
    assert sentences(PEOPLE, people(ID, NAME, AGE, email)) == [
        "column \"email\" added: text not null default '?'::text; older rows show '?'"
    ]


def test_clauses_of_one_command_are_told_by_attnum():
    """P112: DROP COLUMN, RENAME, several clauses in one ALTER, SET and DROP DEFAULT."""
    before = people(ID, NAME, replace(AGE, default="0"))
    renamed = replace(NAME, name="full_name", default="'x'::text")
    note = Column("note", 4, 25, "text")
    assert sentences(before, people(ID, renamed, note)) == [
        'column "name" renamed to "full_name"',
        "column \"full_name\": default is now 'x'::text",
        'column "age" dropped, it was integer default 0',
        'column "note" added: text',
    ]
    assert sentences(before, PEOPLE) == ['column "age": default 0 removed']
    changed = people(ID, NAME, replace(AGE, default="1"))
    assert sentences(before, changed) == ['column "age": default 0 changed to 1']


def test_a_retyped_column_has_both_types():
    """P113: ALTER TYPE from integer to bigint; the table is rewritten, its missing values with."""
    before = people(ID, NAME, replace(AGE, missing="0"))
    after = people(ID, NAME, replace(AGE, type_oid=20, type_name="bigint"))
    assert sentences(before, after) == ['column "age": type integer changed to bigint']
    shorter = people(ID, replace(NAME, type_name="mood", type_oid=7), AGE)
    other = people(ID, replace(NAME, type_name="mood", type_oid=8), AGE)
    assert sentences(shorter, other) == ['column "name": another type of the name mood']


def test_versions_one_after_the_other_add_up_to_what_is_between_first_and_last():
    """P114: each version of a transaction that alters twice is compared with the one before."""
    once = people(ID, NAME, AGE, Column("a", 4, 25, "text"))
    twice = people(*once.columns, Column("b", 5, 25, "text"))
    steps = [*differences(PEOPLE, once), *differences(once, twice)]
    assert steps == differences(PEOPLE, twice)
    assert [difference.subject for difference in steps] == ["a", "b"]


def test_an_alter_that_no_row_shows_differs_too():
    """P115: ALTER without DML: NOT NULL and a key are no part of a row."""
    changed = people(ID, replace(NAME, not_null=True), AGE)
    assert sentences(PEOPLE, changed) == ['column "name": null is now not null']
    assert sentences(changed, PEOPLE) == ['column "name": not null is now null']


def test_a_column_dropped_and_added_again_is_no_rename():
    """P116: values of the column that was dropped are not those of the new one."""
    again = people(ID, NAME, replace(AGE, attnum=4))
    assert sentences(PEOPLE, again) == [
        'column "age" dropped, it was integer',
        'column "age" added: integer',
    ]


def test_another_relation_of_the_same_name_is_another_table():
    other = replace(PEOPLE, relation_id=5)
    assert [difference.aspect for difference in differences(PEOPLE, other)] == [
        *(Aspect.TABLE_DROPPED, Aspect.TABLE_ADDED)
    ]


def test_a_table_that_is_renamed_moved_and_has_another_key():
    after = replace(
        PEOPLE, namespace="app", name="users", identity=ReplicaIdentity.INDEX, key=("name",)
    )
    assert sentences(PEOPLE, after) == [
        'table "app.users" moved from schema "public" to "app"',
        'table "people" renamed to "users"',
        'table "app.users": key id changed to name',
        'table "app.users": replica identity default is now using an index',
    ]
    keyless = replace(PEOPLE, key=())
    assert sentences(PEOPLE, keyless) == ['table "public.people": key id removed']
    assert sentences(keyless, PEOPLE) == ['table "public.people": key is now id']


def test_a_key_column_that_is_renamed_leaves_the_key_as_it_was():
    renamed = replace(PEOPLE, columns=(replace(ID, name="key"), NAME, AGE), key=("key",))
    assert sentences(PEOPLE, renamed) == ['column "id" renamed to "key"']


def test_values_of_older_rows_that_a_rewrite_took_away():
    before = people(ID, NAME, replace(AGE, missing="0"))
    assert sentences(before, PEOPLE) == ["column \"age\": value of older rows '0' removed"]
    modified = people(ID, NAME, replace(AGE, modified="digest"))
    assert sentences(PEOPLE, modified) == ['column "age": its values are modified by other rules']


def test_descriptions_tell_of_comments_identity_columns_generation_and_labels():
    before = described(PEOPLE, name={"labels": ("a", "b")}, age={"generated": "s"})
    after = described(
        PEOPLE,
        id={"identity": "a"},
        name={"labels": ("a", "it's"), "comment": "what it is called"},
    )
    assert list(map(str, differences(PEOPLE, PEOPLE, (before, after)))) == [
        'column "id": identity is now always',
        "column \"name\": comment is now 'what it is called'",
        "column \"name\": labels 'a', 'b' are now 'a', 'it''s'",
        'column "age": generated stored removed',
    ]
    assert differences(PEOPLE, PEOPLE, (before, None)) == []
    assert differences(PEOPLE, PEOPLE, (None, after)) == []


def test_descriptions_tell_a_column_that_is_no_longer_published_from_one_that_was_dropped():
    before, after = PEOPLE, people(ID, NAME)
    whole = described(PEOPLE)
    assert list(map(str, differences(before, after, (whole, whole)))) == [
        'column "age" is no longer published, it is integer'
    ]
    assert list(map(str, differences(after, before, (whole, whole)))) == [
        'column "age" is published from here on: integer'
    ]


def test_descriptions_tell_of_the_table_too():
    before = described(PEOPLE)
    parent = PartitionParent(5, "public", "all_people")
    after = DdlTable(
        *(PEOPLE.relation_id, "public", "people", "r", "u"),
        comment="who",
        partition_of=parent,
        columns=before.columns,
    )
    assert list(map(str, differences(PEOPLE, PEOPLE, (before, after)))) == [
        "table \"public.people\": comment is now 'who'",
        'table "public.people": partition of is now public.all_people',
        'table "public.people": logged is now unlogged',
    ]
