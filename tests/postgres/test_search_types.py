"""The table of types against the types of a real server, and its renderings against real texts."""

from __future__ import annotations

import json
from typing import Final

import psycopg
import pytest

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.search.fields import RESCUED, fields_of
from pgstream_dagster.search.render import document
from pgstream_dagster.search.types import TYPES
from pgstream_dagster.source import catalog
from pgstream_dagster.source.connect import connect
from pgstream_dagster.values.kinds import Kind
from tests.support.plugins.cluster import psql

pytestmark = pytest.mark.every_major

NOT_OF_TABLES: Final = {
    "gtsvector",  # of indexes alone
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",  # of the catalog alone
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
}
"""Types without a kind: what the server itself stores. They are text, as all unknown ones."""

SAMPLES: Final = {
    "bool": ["true", "false"],
    "int2": ["-32768"],
    "int8": ["9223372036854775807", "0"],
    "oid": ["4294967295"],
    "float4": ["1.5e-45", "3.4e38", "-0"],
    "float8": ["5e-324", "1e308", "0.1", "1e21"],
    "numeric": ["1.10", "-0.000000000000000000000000000001", "1e307"],
    "date": ["0001-01-01", "9999-12-31"],
    "timestamp": ["0001-01-01", "9999-12-31 23:59:59.999999"],
    "timestamptz": ["2024-02-29 12:00:00.5+05:30"],
    "json": ['{"a":\n[1e400, "\\u0000\\ud800"]}', "null", '"x"'],
    "jsonb": ['{"b": 1.10, "a": ["\\"\\n{}"]}', "null", "1e300", '"x"', "[]"],
    "int4range": ["[1,5]", "(,)", "[2,)"],
    "numrange": ["(0.5,1.10]", "[1,Infinity)", "(-Infinity,)"],
    "daterange": ["[2024-01-01,2024-02-01]", "[2024-01-01,infinity]"],
    "tsrange": ["[2024-01-01,2024-02-01 00:00:00.5]", "(-infinity,2024-01-01)"],
    "tstzrange": ["[2024-01-01,2024-02-01)"],
    "int8multirange": ["{[1,3),[5,)}", "{}"],
    "tstzmultirange": ["{[2024-01-01,2024-02-01),[2025-01-01,)}"],
    "text": ['q"u,{o}\\te', "NULL", "", "\x01\x1f\x7f\u2028\U0001f40d\n"],
    "bytea": ["\\x00ff"],
    "timetz": ["12:00+05:30"],
    "interval": ["1 year 2 mons -3 days 04:05:06.789"],
    "box": ["(1,1),(0,0)"],
}

RESCUED_SAMPLES: Final = {
    "float8": ["NaN", "-Infinity"],
    "numeric": ["NaN", "Infinity", "1e308", "1e-1200"],
    "date": ["infinity", "0044-03-15 BC", "10000-01-01"],
    "timestamptz": ["-infinity", "0044-03-15 12:00 BC"],
    "int4range": ["empty"],
    "tsrange": ["[0044-03-15 BC,2024-01-01]"],
    "numeric[]": ["{1,NaN}"],
}


@pytest.fixture
def connection(dsn: str) -> psycopg.Connection[tuple[object, ...]]:
    return connect(dsn)


def documents(
    dsn: str, connection: psycopg.Connection[tuple[object, ...]], samples: dict[str, list[str]]
) -> dict[str, list[str]]:
    """A column per type, a row per sample: the documents of real output texts, by type."""
    names = {name: f"c{at}" for at, name in enumerate(samples)}
    with psycopg.connect(dsn, autocommit=True) as writing:
        columns = ", ".join(f"{column} {name}" for name, column in names.items())
        writing.execute(f"create table t ({columns})")
        for name, values in samples.items():
            for value in values:
                writing.execute(f"insert into t ({names[name]}) values (%s)", [value])
    relation_id = psql(dsn, "select 't'::regclass::oid::bigint")[0][0]
    schema = catalog.describe(connection, 1, relation_id)
    bodies_by_name: dict[str, list[str]] = {}
    for name, column in names.items():
        fields = fields_of(schema, IndexConfig(table="public.t", columns=(column,)))
        rows = connection.execute(
            f"select format('%s', {column}) from public.t where {column} is not null"
        ).fetchall()
        bodies_by_name[name] = [document(fields, {column: str(text)}) for (text,) in rows]
    return bodies_by_name


def test_every_type_of_the_server_is_in_the_table(dsn: str) -> None:
    rows = psql(
        dsn,
        "select typname from pg_type where typtype in ('b', 'r', 'm') and typcategory <> 'A'"
        " and typnamespace = 'pg_catalog'::regnamespace",
    )
    assert {name for (name,) in rows} - {*TYPES} == {
        name for (name,) in rows if name in NOT_OF_TABLES
    }


def test_the_types_separated_otherwise_are_known(dsn: str) -> None:
    rows = psql(dsn, "select typname from pg_type where typdelim <> ',' and typcategory <> 'A'")
    assert rows == [("box",)]


@pytest.mark.parametrize("as_array", [False, True])
def test_a_value_reads_back_from_its_document(
    dsn: str, connection: psycopg.Connection[tuple[object, ...]], as_array: bool
) -> None:
    samples = SAMPLES
    if as_array:
        samples = {
            f"{name}[]": [
                psql(
                    dsn, f"select array[null, {_literal(value)}, {_literal(value)}]::{name}[]::text"
                )[0][0]
                for value in values
                if "\\ud800" not in value
            ]
            for name, values in SAMPLES.items()
        }
    with connection:
        bodies_by_name = documents(dsn, connection, samples)
    for name, bodies in bodies_by_name.items():
        assert len(bodies) == len(samples[name])
        for body, value in zip(bodies, samples[name], strict=True):
            parsed = json.loads(body)
            assert RESCUED not in parsed, (name, body)
            (field_value,) = parsed.values()
            _reads_back(dsn, name, value, field_value)


def test_a_value_that_cannot_be_indexed_is_kept_as_text(
    dsn: str, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    with connection:
        bodies_by_name = documents(dsn, connection, RESCUED_SAMPLES)
    for bodies in bodies_by_name.values():
        for body in bodies:
            assert {*json.loads(body)} == {RESCUED}


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _reads_back(dsn: str, name: str, value: str, parsed: object) -> None:
    """What the document says, given to Postgres as the type, is the value that it was."""
    form = TYPES[name.removesuffix("[]")]
    if name in ("json", "jsonb"):
        as_floats = json.loads(json.dumps(parsed), parse_int=float)
        assert as_floats == json.loads(value, parse_int=float)
        return
    if form.kind is Kind.JSON or "range" in form.kind or name.startswith("box"):
        return  # the property tests compare their meaning
    if name.endswith("[]"):
        assert isinstance(parsed, list)
        assert parsed[0] is None
        parsed, value = parsed[1], psql(dsn, f"select ({_literal(value)}::{name})[2]::text")[0][0]
    text = json.dumps(parsed) if isinstance(parsed, float | bool) else str(parsed)
    base = name.removesuffix("[]")
    if base in ("float4", "float8", "numeric"):
        assert float(text) == pytest.approx(float(value), rel=1e-15)
        return
    query = f"select {_literal(text)}::{base} = {_literal(value)}::{base}"
    assert psql(dsn, query) == [(True,)], (name, text, value)
