"""Modifiers in front of the log: what a version says was done to its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.modifiers.rows import LogModifiers
from pgstream_dagster.modifiers.rules import Rules
from tests.support.modifiers import KEY, change, column, modifiers, table


def log_modifiers(config: Mapping[str, Any]) -> LogModifiers:
    return LogModifiers(Rules({"m": ModifierConfig.model_validate(config)}, KEY))


def emails(rule: Mapping[str, Any]) -> LogModifiers:
    return log_modifiers({"transform": {"public.customers": {"email": rule}}})


def test_a_version_is_current_until_the_rule_is_another_one() -> None:
    schema = table("id", column("email", missing="john@a.b"))
    hashing, generating = emails({"name": "hash"}), emails({"name": "neosync_email"})
    landed = hashing.schema(schema)
    assert hashing.is_current(landed)
    assert not generating.is_current(landed)  # of the hash no address can be made
    assert not emails({}).is_current(landed)


def test_what_older_rows_show_is_modified_once_whatever_the_rules_are_later() -> None:
    schema = table("id", column("email", missing="john@a.b"))
    landed = emails({"name": "hash"}).schema(schema)
    assert landed.columns[1].missing not in {None, "john@a.b"}
    generating = emails({"name": "neosync_email"})  # which takes no hash
    later = generating.schema(landed)
    assert later.columns[1].missing == landed.columns[1].missing
    assert not generating.is_current(landed)
    assert generating.is_current(later)
    again = emails({"name": "hash"}).schema(landed)
    assert again == landed


def test_rows_are_modified_whatever_the_log_has_of_older_ones() -> None:
    landed = emails({"name": "hash"}).schema(table("id", column("email", missing="john@a.b")))
    config = {"transform": {"public.customers": {"email": {"name": "masking", "type": "email"}}}}
    chain = modifiers(config, before_log=True)
    result = chain.change(change(landed, "insert", after={"id": "1", "email": "jane@a.b"}))
    assert result is not None
    assert result.after == {"id": "1", "email": "jan****@a.b"}


def test_a_column_that_cannot_be_identified_is_not_stored_in_a_table_with_left_out_ones() -> None:
    unknown = table(column("id", attnum=-1), column("note", attnum=-2))
    former = table("id", "internal_note")
    config = {"drop": {"public.customers": ["internal_note"]}}
    chain = modifiers(config, versions=[former], before_log=True)
    result = chain.change(change(unknown, "insert", key=("1",), after={"id": "1", "note": "plain"}))
    assert result is not None
    assert result.after == {"id": "", "note": None}
