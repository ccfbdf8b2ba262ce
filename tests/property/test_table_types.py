"""Typed columns against Postgres: what they hold is what was there, and the rest is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.schema.table import Column
from pgstream_dagster.source import catalog
from pgstream_dagster.source.connect import connect
from pgstream_dagster.tables.forms import form_of
from pgstream_dagster.tables.types import RESCUED, TypedColumn, with_types
from tests.support.plugins.cluster import psql
from tests.support.reference import literals, texts, typed
from tests.support.reference.strategies import EXAMPLES

pytestmark = pytest.mark.slow

TYPES: Final = (*literals.LITERALS, *(f"{name}[]" for name in literals.ARRAYS))
ROWS: Final = 1_000
BATCHES: Final = max(1, EXAMPLES // 100)
SEEDS: Final = st.integers(0, 1 << 32)
WHOLE: Final = settings(  # a batch takes seconds, and another seed is no simpler
    max_examples=BATCHES,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

Texts = Mapping[str, list["str | None"]]


@pytest.fixture(scope="module")
def connection(module_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    columns = ", ".join(f"c{at} {name}" for at, name in enumerate(TYPES))
    psql(module_dsn, *literals.CREATED, f"create table t ({columns})")
    with connect(module_dsn) as session:
        session.execute("set search_path to public")  # to find the types by their names
        yield session


@pytest.fixture(scope="module")
def columns(connection: psycopg.Connection[Any]) -> tuple[Column, ...]:
    """A column per type, in their order, as the catalog describes it."""
    [(relation_id,)] = connection.execute("select 'public.t'::regclass::oid::bigint").fetchall()
    return catalog.describe(connection, 1, relation_id).columns


@pytest.mark.long
@given(SEEDS)
@WHOLE
def test_a_typed_value_is_what_postgres_printed(
    spark: SparkSession,
    connection: psycopg.Connection[Any],
    columns: tuple[Column, ...],
    seed: int,
) -> None:
    drawn = {
        name: typed.printed(connection, name, inputs) for name, inputs in _inputs(seed).items()
    }
    listed = [TypedColumn(f"v{at}", column) for at, column in enumerate(columns)]
    values = _typed(spark, listed, drawn)
    for name, column in zip(TYPES, listed, strict=True):
        _check(connection, name, column, drawn[name], values)


@given(SEEDS)
@WHOLE
def test_numeric_as_a_decimal_is_numerically_equal(
    spark: SparkSession, connection: psycopg.Connection[Any], seed: int
) -> None:
    """Zeros behind the point may be added; a number that needs more digits is kept as text."""
    random, options = Random(seed), ColumnTypes(numeric="decimal(38,10)")
    inputs = [literals.LITERALS["numeric"](random) for _ in range(ROWS)]
    drawn = typed.printed(connection, "numeric", inputs)
    column = TypedColumn("v0", Column("c0", 1, 1, "numeric", value_type="numeric"), options)
    values = _typed(spark, [column], {"numeric": drawn})
    for text, value, rescued in zip(drawn, values["v0"], values[RESCUED], strict=True):
        assert text is not None
        whole, _, fraction = text.lstrip("-").partition(".")
        fits = text[-1].isdigit() and len(fraction) <= 10 and len(whole) <= 28
        assert (value is not None) == fits, text
        assert rescued == (None if fits else [("v0", text)])
        assert not fits or format(value, "f").rstrip("0") == (
            text.rstrip("0") if fraction else f"{text}."
        )


@pytest.mark.long
@pytest.mark.one_major("newest")
@given(SEEDS)
@WHOLE
def test_any_text_is_typed_or_kept_and_never_an_error(
    spark: SparkSession, columns: tuple[Column, ...], seed: int
) -> None:
    """Texts of other types, damaged texts, and any others, also where options apply."""
    random = Random(seed)
    options = [
        ColumnTypes(),
        ColumnTypes(numeric="decimal(5,5)", json="variant"),
        ColumnTypes(numeric="decimal(5,0)"),
    ]
    listed = [
        TypedColumn(f"v{at}", column, random.choice(options)) for at, column in enumerate(columns)
    ]
    drawn = {name: [_anything(random) for _ in range(ROWS)] for name in TYPES}
    values = _typed(spark, listed, drawn)
    for name, column in zip(TYPES, listed, strict=True):
        for text, value, rescued in zip(
            drawn[name], values[column.name], values[RESCUED], strict=True
        ):
            kept = dict(rescued or []).get(column.name)
            assert kept == (text if value is None else None)


def _inputs(seed: int) -> dict[str, list[str | None]]:
    random = Random(seed)
    drawn: dict[str, list[str | None]] = {
        name: [draw(random) for _ in range(ROWS)] for name, draw in literals.LITERALS.items()
    }
    for name in literals.ARRAYS:
        drawn[f"{name}[]"] = [literals.array(name, random) for _ in range(ROWS)]
    for inputs in drawn.values():
        inputs[0] = None
    return drawn


def _anything(random: Random) -> str:
    name = random.choice(tuple(literals.LITERALS))
    text = literals.LITERALS[name](random) if random.random() < 0.6 else texts.text(random)
    if name in literals.ARRAYS and random.random() < 0.3:
        text = literals.array(name, random)
    if random.random() < 0.3:
        at = random.randint(0, len(text))
        text = text[:at] + random.choice(["", *texts.CHARACTERS]) + text[at + 1 :]
    return text


def _typed(spark: SparkSession, listed: list[TypedColumn], drawn: Texts) -> dict[str, list[Any]]:
    """The values of each column, and the texts that were kept."""
    names = [column.source.name for column in listed]
    rows = [list(zip(names, row, strict=True)) for row in zip(*drawn.values(), strict=True)]
    table = pa.table({"row": pa.array(rows, pa.map_(pa.string(), pa.string()))})
    frame = with_types(spark.createDataFrame(table), listed)
    variants = [f.name for f in frame.schema if "variant" in f.dataType.simpleString()]
    for name in variants:  # Arrow does not take a variant that is null
        frame = frame.withColumn(name, F.when(F.col(name).isNotNull(), F.lit("a variant")))
    return frame.toArrow().to_pydict()


def _check(
    connection: psycopg.Connection[Any],
    name: str,
    column: TypedColumn,
    drawn: list[str | None],
    values: Mapping[str, list[Any]],
) -> None:
    form = form_of(column.source, column.options)
    inputs = [typed.readable(form, value) for value in values[column.name]]
    outputs = typed.printed(connection, name, inputs)
    assert any(output is not None for output in outputs), name
    for text, output, rescued in zip(drawn, outputs, values[RESCUED], strict=True):
        kept = dict(rescued or []).get(column.name)
        if kept is None:
            assert output == text, (name, form, text, output)
        else:
            assert (kept, output) == (text, None), (name, form)
