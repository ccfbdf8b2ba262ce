"""Functions of PostgreSQL Anonymizer, on a server that has functions of its names and arguments."""

from __future__ import annotations

from contextlib import closing

import pytest

from pgstream_dagster.errors import MissingSetting, TransformerAway, TransformFailed
from pgstream_dagster.modifiers.anonymizer import Sessions, anonymizer
from pgstream_dagster.modifiers.unfit import Away
from tests.support.modifiers import change, column, masking_table, rule, table, transformed
from tests.support.plugins.cluster import psql

pytestmark = pytest.mark.one_major("newest")

FUNCTIONS = """
create schema anon;
create function anon.partial(ov text, prefix int, padding text, suffix int) returns text
language sql as $$ select left($1, $2) || $3 || right($1, $4) $$;
create function anon.partial_email(ov text) returns text
language sql as $$ select left($1, 2) || '******' $$;
create function anon.hash(seed text) returns text language sql as $$ select md5($1) $$;
create function anon.digest(seed text, salt text, algorithm text) returns text
language sql as $$ select $3 || ':' || md5($1 || $2) $$;
create function anon.pseudo_city(seed anyelement, salt text default null) returns text
language sql as $$ select 'city of ' || md5($1::text || coalesce($2, '')) $$;
create function anon.noise(noise_value anyelement, ratio double precision) returns anyelement
language sql as $$ select $1 $$;
create function anon.dnoise(noise_value anyelement, noise_range interval) returns anyelement
language plpgsql as $$ begin return (noise_value + noise_range)::date; end $$;
create function anon.random_int_between(a int, b int) returns int
language sql as $$ select $1 $$;
create function anon.random_string(l int) returns text
language sql as $$ select repeat('x', $1) $$;
create function anon.lorem_ipsum(
    paragraphs int default 5, words int default 0, characters int default 0
) returns text language sql as $$ select repeat('w', $2) $$;
create function anon.fake_city() returns text language sql as $$ select 'Springfield' $$;
create function anon.image_blur(data bytea, sigma numeric) returns bytea
language sql as $$ select $1 || '\\x00' $$;
"""


@pytest.fixture
def anon(dsn: str) -> str:
    psql(dsn, FUNCTIONS)
    return dsn


@pytest.mark.parametrize(
    ("function", "parameters", "value_type", "value", "result"),
    [
        (
            "anon.partial",
            {"mask": "***", "mask_prefix_count": 2, "mask_suffix_count": 1},
            "text",
            "secret",
            "se***t",
        ),
        ("anon.partial_email", {}, "text", "john@a.b", "jo******"),
        ("anon.hash", {}, "text", "a", "0cc175b9c0f1b6a831c399e269772661"),
        (
            "anon.digest",
            {"salt": "s", "hash_algorithm": "md5"},
            "text",
            "a",
            "md5:f970e2767d0cfe75876ea857f92e319b",
        ),
        ("anon.noise", {"ratio": "0.2"}, "int4", "7", "7"),
        ("anon.dnoise", {"interval": "2 days"}, "date", "2024-01-01", "2024-01-03"),
        ("anon.random_int_between", {"min": "3", "max": "4"}, "int4", "7", "3"),
        ("anon.random_string", {"count": 4}, "text", "a", "xxxx"),
        ("anon.lorem_ipsum", {"count": 3, "unit": "words"}, "text", "a", "www"),
        ("anon.fake_city()", {}, "text", "a", "Springfield"),
        ("anon.image_blur", {"sigma": "2"}, "bytea", "\\xff", "\\xff00"),
        ("anon.hash", {}, "text[]", "{a,NULL}", "{0cc175b9c0f1b6a831c399e269772661,NULL}"),
    ],
)
def test_a_function_gets_the_value_and_its_parameters(
    anon, function, parameters, value_type, value, result
) -> None:
    given = rule("pg_anonymizer", anon_function=function, postgres_url="ANON", **parameters)
    assert transformed(given, value, value_type, environment={"ANON": anon}, key=None) == result


def test_pseudonyms_repeat_and_depend_on_the_salt(anon) -> None:
    function = {"anon_function": "anon.pseudo_city", "postgres_url": "ANON"}
    environment = {"ANON": anon}
    salted = rule("pg_anonymizer", salt="s", **function)
    first = transformed(salted, "7", "int8", environment=environment)
    assert first == transformed(salted, "7", "int8", environment=environment)
    assert first != transformed(
        rule("pg_anonymizer", **function), "7", "int8", environment=environment
    )


def test_a_session_that_ended_is_opened_again(anon) -> None:
    given = rule("pg_anonymizer", anon_function="anon.hash", postgres_url="ANON")
    sessions = Sessions()
    called = anonymizer(given, anon, "text", sessions)
    assert called("a") == called("a")
    psql(
        anon,
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()",
    )
    with pytest.raises(Away):
        called("a")
    assert called("a") == "0cc175b9c0f1b6a831c399e269772661"
    sessions.close()


def test_what_the_server_refuses_is_an_error_without_the_value(anon) -> None:
    schema = table("id", column("note", "text"))
    given = {"name": "pg_anonymizer", "anon_function": "anon.nothing", "postgres_url": "ANON"}
    chain = masking_table({"note": given}, schema, environment={"ANON": anon})
    with pytest.raises(TransformFailed, match="42883") as failed:
        chain.change(change(schema, "insert", key=("1",), after={"id": "1", "note": "secret"}))
    chain.close()
    assert "secret" not in str(failed.value)
    with pytest.raises(MissingSetting, match="ANON"):
        masking_table({"note": given}, schema).change(change(schema, "truncate"))


@pytest.mark.parametrize("policy", ["null", "pass-through"])
def test_no_policy_for_values_hides_a_server_that_is_away_or_a_missing_function(
    anon, policy
) -> None:
    schema = table("id", column("note", "text"))
    given = {"name": "pg_anonymizer", "anon_function": "anon.nothing", "postgres_url": "ANON"}
    row = change(schema, "insert", key=("1",), after={"id": "1", "note": "secret"})
    for dsn, error in ((anon, TransformFailed), ("host=127.0.0.1 port=1", TransformerAway)):
        chain = masking_table({"note": given}, schema, on_error=policy, environment={"ANON": dsn})
        with closing(chain), pytest.raises(error) as failed:
            chain.change(row)
        assert "secret" not in str(failed.value)


def test_what_a_function_says_about_a_value_is_left_to_the_policy(anon) -> None:
    psql(
        anon,
        "create or replace function anon.hash(seed text) returns text language sql as"
        " $$ select (1 / length($1))::text $$",
    )
    schema = table("id", column("note", "text"))
    given = {"name": "pg_anonymizer", "anon_function": "anon.hash", "postgres_url": "ANON"}
    row = change(schema, "insert", key=("1",), after={"id": "1", "note": ""})
    chain = masking_table({"note": given}, schema, on_error="null", environment={"ANON": anon})
    with closing(chain):
        result = chain.change(row)
    assert result is not None
    assert result.after == {"id": "1", "note": None}
