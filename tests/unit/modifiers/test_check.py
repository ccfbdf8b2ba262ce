"""What is wrong with the rules for a table, before a value is transformed."""

from __future__ import annotations

import pytest

from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.modifiers.check import Severity, check
from pgstream_dagster.schema.table import TableSchema
from tests.support.modifiers import column, table

CUSTOMERS = table(
    column("id", "int8"),
    "email",
    column("born", "date", not_null=True),
    column("score", "numeric"),
    column("age", "int2"),
    column("mood", "enum", type_name="public.mood"),
    column("place", "geometry", type_name="public.geometry"),
    column("code", "varchar", typmod=14, type_name="character varying(10)"),
    column("tags", "text[]"),
    column("amount", "int8"),
)


def problems(
    rules: dict[str, object], schema: TableSchema = CUSTOMERS, **more: object
) -> list[tuple[str, str, str]]:
    unique = more.pop("unique", ())
    config = ModifierConfig.model_validate({"transform": {"public.customers": rules}, **more})
    findings = check("m", config, schema, unique=unique)
    return [(f.severity.value, f.column, f.problem) for f in findings]


@pytest.mark.parametrize(
    ("name", "rule", "problem"),
    [
        ("amount", {"name": "string"}, "takes bytea, string, and the column is int8 (oid 20)"),
        ("score", {"name": "greenmask_float"}, "takes bytea, float, and the column is numeric"),
        ("mood", {"name": "masking"}, "the column is public.mood"),
        ("place", {"name": "masking"}, "takes bytea, string, and the column is public.geometry"),
        ("email", {"name": "json", "operations": [{"operation": "delete", "path": "a"}]}, "json"),
        ("age", {"name": "literal_string", "literal": "old"}, "no value of int2"),
        ("age", {"name": "literal_string", "literal": "40000"}, "no value of int2"),
        ("code", {"name": "literal_string", "literal": "x" * 11}, "no value of character"),
        ("age", {"name": "greenmask_integer", "min_value": 40000}, "does not fit int2"),
        ("age", {"name": "greenmask_unix_timestamp", "min_value": 0, "max_value": 99999}, "int2"),
        ("code", {"name": "hash"}, "64 digits do not fit"),
        ("born", {"name": "null"}, "may not be NULL"),
        (
            "email",
            {"name": "template", "template": "x", "dynamic_parameters": {"a": {"column": "b"}}},
            "reads column 'b', which is not there",
        ),
        ("nothing", {"name": "masking"}, "no such column"),
    ],
)
def test_a_rule_that_does_not_fit_its_column_is_an_error(name, rule, problem) -> None:
    [(severity, where, text)] = problems({name: rule})
    assert (severity, where) == (Severity.ERROR, name)
    assert problem in text


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("mood", {"name": "literal_string", "literal": "happy"}),
        ("score", {"name": "null"}),
        ("tags", {"name": "masking"}),
        ("age", {"name": "greenmask_integer"}),
        ("born", {"name": "date_shift", "days": 5}),
        ("code", {"name": "hash", "length": 10}),
        ("id", {"name": "noop"}),
    ],
)
def test_a_rule_that_fits_has_no_finding(name, rule) -> None:
    assert problems({name: rule}) == []


TEXT_KEY = table("id", "email", "phone")


@pytest.mark.parametrize(
    ("rule", "severity"),
    [
        ({"name": "masking"}, "error"),
        ({"name": "masking", "allow_uniqueness_loss": True}, None),
        ({"name": "null"}, "error"),
        ({"name": "encrypted_aes_siv"}, None),
        ({"name": "greenmask_string"}, "warning"),
        ({"name": "hash"}, "warning"),
        ({"name": "noop"}, None),
    ],
)
@pytest.mark.parametrize("name", ["id", "email"])
def test_uniqueness_of_keys_and_unique_indexes(name, rule, severity) -> None:
    found_problems = problems({name: rule}, TEXT_KEY, unique=[("email", "phone")])
    assert [(s, c) for s, c, _ in found_problems] == ([(severity, name)] if severity else [])


@pytest.mark.parametrize(("name", "blocks"), [("id", True), ("email", False)])
def test_of_values_that_become_equal_only_those_of_a_key_stop_a_target(name, blocks) -> None:
    """A unique index concerns no search index or topic, and a Postgres sink does not make it."""
    config = ModifierConfig.model_validate(
        {"transform": {"public.customers": {name: {"name": "masking"}}}}
    )
    [finding] = check("m", config, TEXT_KEY, unique=[("email", "phone")])
    assert finding.blocks is blocks


def test_a_key_may_read_only_what_old_rows_carry() -> None:
    rule = {
        "name": "template",
        "template": "{{ dynamic('p') }}",
        "allow_uniqueness_loss": True,
        "dynamic_parameters": {"p": {"column": "phone"}},
    }
    [(severity, name, text)] = problems({"id": rule}, TEXT_KEY)
    assert (severity, name) == ("error", "id")
    assert "'phone'" in text
    assert problems({"id": rule}, table("id", "phone", key=("id", "phone"))) == []


def test_columns_without_a_rule() -> None:
    rules = {"id": {}, "email": {"name": "masking"}}
    assert problems(rules, TEXT_KEY) == []
    [(severity, name, _)] = problems(rules, TEXT_KEY, new_columns="drop")
    assert (severity, name) == ("warning", "phone")
    [(severity, name, _)] = problems(rules, TEXT_KEY, new_columns="stop")
    assert (severity, name) == ("error", "phone")


def test_a_key_cannot_be_left_out() -> None:
    for more in ({"new_columns": "drop"}, {"drop": {"public.customers": ["id"]}}):
        findings = problems({"email": {}, "phone": {}}, TEXT_KEY, **more)
        assert [(s, c) for s, c, _ in findings if s == "error"] == [("error", "id")]


def test_functions_that_invent_values_are_not_for_keys() -> None:
    rule = {"name": "pg_anonymizer", "anon_function": "anon.fake_city", "postgres_url": "ANON"}
    [(severity, _, text)] = problems({"email": rule}, TEXT_KEY)
    assert severity == "warning"
    assert "another result" in text
    severities = {s for s, _, _ in problems({"id": rule}, TEXT_KEY)}
    assert severities == {"error", "warning"}


def test_an_unknown_column_of_a_pattern_is_no_finding() -> None:
    config = ModifierConfig.model_validate({"transform": {"*.*": {"ssn": {"name": "masking"}}}})
    assert check("m", config, TEXT_KEY) == []


def test_a_key_cannot_be_null_whatever_the_rule_allows() -> None:
    [(severity, _, text)] = problems(
        {"id": {"name": "null", "allow_uniqueness_loss": True}}, TEXT_KEY
    )
    assert (severity, text) == ("error", "it is part of the key, which cannot be NULL")
