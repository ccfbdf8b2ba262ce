"""Named cases of typed columns, with texts of a real server where it can print them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.schema.table import Column
from pgstream_dagster.source import catalog
from pgstream_dagster.source.connect import connect
from pgstream_dagster.tables import reference
from pgstream_dagster.tables.forms import form_of
from pgstream_dagster.tables.types import RESCUED, TypedColumn, delta_type, typed, with_types
from pgstream_dagster.tables.widening import widened
from tests.support.plugins.cluster import psql
from tests.support.reference.literals import CREATED
from tests.support.reference.typed import printed, readable

KEPT: Final = object()
"""Marks a text that is in `RESCUED` as it was."""

HUGE: Final = ("9" * 131_072, "-0." + "0" * 16_382 + "1")

EDGES: Final[dict[str, list[str]]] = {
    # 59
    "numeric": ["NaN", "Infinity", "-Infinity", *HUGE, "0.00", "1.50"],
    # 60, B121
    "date": ["infinity", "-infinity", "4713-01-01 BC", "0001-01-01", "9999-12-31", "10000-01-01"],
    "timestamp": ["infinity", "0044-03-15 BC", "294276-12-31 23:59:59", "2024-02-29 24:00:00"],
    "timestamptz": ["-infinity", "0001-01-01 00:00:00+01", "2024-03-10 02:30-05"],
    "timetz": ["24:00:00+05:30:15", "00:00:00-15:59:59"],
    # 61
    "text": ["\x01\x7f\u0085\u200b\u2028\ufeff\ud7ff\ue000\U0001f40d\U0010ffff", "", "é" * 500_000],
    # 62
    "jsonb": ["1e400", '{"b": 1.10, "a": [1, {"b": null}]}'],
    "json": ['{"a":1, "a":2}', '"\\ud800"', '"\\u0000"', " [1e400]\n"],
    # 63
    "bytea": ["\\x", "\\x" + bytes(range(256)).hex()],
    "bit(3)": ["101"],
    "varbit": ["", "10101"],
    "money": ["$1,234.50"],
    # 64, B121
    "int4[]": ["{}", "{1,NULL}", "{{1,2},{3,4}}", "[0:1]={7,8}"],
    "text[]": ['{a,"b c","{\\"\\\\}",NULL,"NULL","null",""}', "{{{a}}}"],
    "daterange[]": ['{"[2024-01-01,2024-02-01)",empty,NULL}', '{"[2024-01-01,infinity]"}'],
    "int4range": ["empty", "(,)", "[1,5]", "(,7)"],
    "tstzrange": ["[2024-01-01,infinity)", "[2024-01-01 00:00+02,2024-02-01)"],
    "datemultirange": ["{}", "{[2024-01-01,2024-02-01),[2025-01-01,)}"],
    "hstore": ['a=>NULL, "b \\"\\\\"=>"NULL"', ""],
    "mood": ['so "so"'],
    "mood[]": ['{"so \\"so\\"","NULL","{}"}'],
    "cents": ["1.50"],
    "cents[]": ["{1.50,NaN}"],
    "pair": ['(1,"a ""b"", c")'],
    "pair[]": ['{"(1,x)",NULL}'],
    "spans": ["[1,2.5)"],
    "ltree": ["a.b"],
    "tsvector": ["'a b':1A"],
    "citext": ["Ab"],
    "xml": ["<a/>"],
    "pg_lsn": ["16/B374D848"],
    "oid": ["4294967295"],
    # G1, G2
    "numeric(38,10)": ["12345678901234567890.1234567891", "NaN"],
    "float8": ["NaN", "Infinity", "-Infinity", "-0", "1e+20", "5e-324"],
    "float4": ["NaN", "-Infinity", "1e-45", "3.4028235e+38"],
}  # fmt: skip
"""By type: inputs of the cases 59 to 64 of field.md, B121, G1, G2 and G25."""


def column_of(value_type: str, typmod: int = -1, name: str = "c") -> Column:
    return Column(name, 1, 1, value_type, typmod, value_type=value_type)


def frame_of(spark: SparkSession, rows: Sequence[dict[str, str | None]]) -> DataFrame:
    maps = pa.array([list(row.items()) for row in rows], pa.map_(pa.string(), pa.string()))
    return spark.createDataFrame(pa.table({"row": maps}))


def outcomes(
    spark: SparkSession, column: Column, texts: Sequence[str | None], **options: Any
) -> list[Any]:
    """What becomes of each text: its value, or `KEPT`."""
    listed = [TypedColumn("v", column, ColumnTypes(**options))]
    frame = with_types(frame_of(spark, [{column.name: text} for text in texts]), listed)
    if "variant" in delta_type(column, listed[0].options).simpleString():
        frame = frame.withColumn("v", F.to_json("v"))
    both = zip(texts, frame.toArrow().to_pylist(), strict=True)
    return [_outcome(text, row) for text, row in both]


def _outcome(text: str | None, row: dict[str, Any]) -> Any:
    if row[RESCUED] is None:
        assert (row["v"] is None) == (text is None)
        return row["v"]
    assert (row["v"], row[RESCUED]) == (None, [("v", text)])
    return KEPT


@pytest.fixture
def edges(dsn: str) -> tuple[dict[str, tuple[Column, list[str | None]]], str]:
    """Each type of `EDGES`: its column as the catalog has it, and the texts the server prints."""
    listed = ", ".join(f"c{at} {name}" for at, name in enumerate(EDGES))
    psql(dsn, *CREATED, f"create table t ({listed})")
    relation_id = psql(dsn, "select 't'::regclass::oid::bigint")[0][0]
    with connect(dsn) as session:
        columns = catalog.describe(session, 1, relation_id).columns
        session.execute("set search_path to public")
        texts = [printed(session, name, inputs) for name, inputs in EDGES.items()]
    return dict(zip(EDGES, zip(columns, texts, strict=True), strict=True)), dsn


@pytest.mark.every_major
def test_every_edge_comes_back_or_is_kept(spark: SparkSession, edges: Any) -> None:
    """field 59 to 64, B121, P120, G1, G2, G25: nothing is lost, changed or NULL."""
    by_type, dsn = edges
    longest = max(len(texts) for _, texts in by_type.values())
    rows = [
        {c.name: texts[n] if n < len(texts) else None for c, texts in by_type.values()}
        for n in range(longest)
    ]
    listed = [TypedColumn(name, column) for name, (column, _) in by_type.items()]
    values = with_types(frame_of(spark, rows), listed).toArrow().to_pylist()
    kept = {
        name: [text for row in values if (text := dict(row[RESCUED] or []).get(name)) is not None]
        for name in by_type
    }
    with connect(dsn) as session:
        session.execute("set search_path to public")
        for name, (column, texts) in by_type.items():
            inputs = [readable(form_of(column), row[name]) for row in values[: len(texts)]]
            outputs = printed(session, name, inputs)
            assert _whole(outputs, texts, kept[name]) == texts, name
    assert {name: texts for name, texts in kept.items() if texts} == {
        "date": ["infinity", "-infinity", "4713-01-01 BC", "10000-01-01"],
        "timestamp": ["infinity", "0044-03-15 00:00:00 BC", "294276-12-31 23:59:59"],
        "timestamptz": ["-infinity", "0001-12-31 23:00:00+00 BC"],
        "int4[]": ["{{1,2},{3,4}}", "[0:1]={7,8}"],
        "text[]": ["{{{a}}}"],
        "daterange[]": ['{"[2024-01-01,infinity]"}'],
        "tstzrange": ['["2024-01-01 00:00:00+00",infinity)'],
        "numeric(38,10)": ["NaN"],
    }


def _whole(
    outputs: Sequence[str | None], texts: Sequence[str | None], kept: Sequence[str]
) -> list[str | None]:
    """For each text: what the typed value printed, or the text that was kept."""
    remaining = iter(kept)
    return [
        next(remaining) if output is None and text is not None else output
        for output, text in zip(outputs, texts, strict=True)
    ]


def test_numeric_of_38_digits_is_exact(spark: SparkSession) -> None:
    """G1, field 59: every digit; NaN is kept as text, and never 0."""
    column = column_of("numeric", (38 << 16 | 10) + 4)
    texts = ["12345678901234567890.1234567891", "-0.0000000001", "NaN", None]
    exact = [Decimal("12345678901234567890.1234567891"), Decimal("-1E-10"), KEPT, None]
    assert outcomes(spark, column, texts) == exact


def test_a_display_scale_is_padded_but_never_cut(spark: SparkSession) -> None:
    """Under an option for a numeric without a scale: 1.50 is no decimal(10,1)."""
    options = {"numeric": "decimal(10,1)"}
    texts = ["1.5", "1", "1.50", "1234567890", "123456789.1", "NaN", "-Infinity"]
    assert outcomes(spark, column_of("numeric"), texts, **options) == [
        *(Decimal("1.5"), Decimal("1.0"), KEPT, KEPT, Decimal("123456789.1"), KEPT, KEPT)
    ]


def test_a_variant_holds_what_it_holds_exactly(spark: SparkSession) -> None:
    """field 62: 10^400, a key twice and half a surrogate are kept; others mean what they meant."""
    exact = [
        *('{"a": [1.10, -0.5, null, true]}', "null", '"x"', "[]", "12345678901234567890.10"),
        *('"\\ud83d\\ude00 \\u0000 \\\\u1e5"', '{"e5": "123e5"}', "9" * 38, " [1 ,2]\n"),
    ]
    kept = [
        "1" + "0" * 400,
        "1e5",
        '{"a":1, "a":2}',
        '"\\ud800"',
        '"\\udc00\\ud800"',
        "9" * 39,
        "0." + "1" * 38,
    ]
    kept += ["", "1 2", "1,2", "{", "nul", "01"]
    values = outcomes(spark, column_of("json"), [*exact, *kept], json="variant")
    assert values[len(exact) :] == [KEPT] * len(kept)
    for text, value in zip(exact, values, strict=False):
        assert json.loads(value, parse_float=Decimal) == json.loads(text, parse_float=Decimal)


def test_bytes_in_another_format_are_kept(spark: SparkSession) -> None:
    """field 63: bytea_output = escape."""
    texts = ["\\x00ff", "\\000abc", "\\x0", "\\xFF", "abc", "\\x"]
    assert outcomes(spark, column_of("bytea"), texts) == [b"\0\xff", KEPT, KEPT, KEPT, KEPT, b""]


@pytest.mark.long
def test_long_values_do_not_overflow_the_stack(spark: SparkSession) -> None:
    """Java walks a group that is not possessive with its stack."""
    count = 20_000
    texts = {
        "int4[]": "{" + ",".join(["1"] * count) + "}",
        "text[]": "{" + ",".join(['"a\\"b"', "c", "NULL"] * count) + "}",
        "hstore": ", ".join(f'"k{n}"=>"v\\\\"' for n in range(count)),
        "vector": "[" + ",".join(["0.25"] * count) + "]",
        "int8multirange": "{" + ",".join(f"[{n},{n + 1})" for n in range(count)) + "}",
        "bytea": "\\x" + "00" * count,
        "json": "[" + ", ".join(['{"a": "1\\n"}'] * count) + "]",
    }
    sizes = []
    for value_type, text in texts.items():
        listed = TypedColumn("v", column_of(value_type), _options(value_type))
        value, _ = typed(F.col("row")["c"], listed.source, listed.options)
        size = (
            F.length(F.to_json(value))
            if value_type == "json"
            else F.length(F.to_json(F.struct(value)))
        )
        sizes.append(F.coalesce(size, F.lit(-1)) if value_type != "bytea" else F.length(value))
        frame = frame_of(spark, [{"c": text}])
        [(measured,)] = frame.select(sizes[-1]).collect()
        assert measured >= count, value_type


def _options(value_type: str) -> ColumnTypes:
    return ColumnTypes(json="variant") if value_type == "json" else ColumnTypes()


@pytest.mark.parametrize(
    ("zone", "ansi"), [("America/New_York", "false"), ("Asia/Kolkata", "true")]
)
def test_times_do_not_depend_on_the_session(spark: SparkSession, zone: str, ansi: str) -> None:
    """G24, field 60: DST edges, the first and the last moment, in any zone and mode of Spark."""
    texts = ["0001-01-01 00:00:00", "2024-03-10 02:30:00", "2024-11-03 01:30:00.5"]
    texts.append("9999-12-31 23:59:59.999999")
    before = {name: spark.conf.get(name) for name in (ZONE, ANSI)}
    try:
        spark.conf.set(ZONE, zone)
        spark.conf.set(ANSI, ansi)
        plain, zoned = (
            _micros(spark, value_type, [text + suffix for text in texts])
            for value_type, suffix in (("timestamp", ""), ("timestamptz", "+00"))
        )
        assert outcomes(spark, column_of("int4"), ["x", "2147483648"]) == [KEPT, KEPT]
    finally:
        for name, setting in before.items():
            spark.conf.set(name, str(setting))
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - as both are without a zone
    times = [(dt.datetime.fromisoformat(t) - epoch) // dt.timedelta(microseconds=1) for t in texts]
    assert plain == zoned == times


ZONE: Final = "spark.sql.session.timeZone"
ANSI: Final = "spark.sql.ansi.enabled"


def _micros(spark: SparkSession, value_type: str, texts: Sequence[str]) -> list[int]:
    """Microseconds from 1970, as Parquet stores them."""
    frame = frame_of(spark, [{"c": text} for text in texts])
    value, is_rescued = typed(F.col("row")["c"], column_of(value_type))
    assert not frame.where(is_rescued).count()
    arrow = frame.select(value.alias("v")).toArrow()
    return [scalar.value for scalar in arrow["v"].combine_chunks()]


def test_the_files_of_a_table_hold_the_same_values(spark: SparkSession, tmp_path: Path) -> None:
    """field 60: another reader of the Parquet files sees the first and the last moment too."""
    texts = {
        "timestamptz": ["0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"],
        "timestamp": ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"],
        "date": ["0001-01-01", "9999-12-31"],
        "float8": ["-0", "NaN"],
        "bytea": ["\\x", "\\x00ff"],
        "int4range": ["empty", "[1,5)"],
        "hstore": ["", '"a"=>NULL'],
        "text[]": ["{}", '{NULL,"NULL"}'],
    }
    rows = [{name: values[n] for name, values in texts.items()} for n in range(2)]
    listed = [TypedColumn(name, column_of(name, name=name)) for name in texts]
    frame = with_types(frame_of(spark, rows), listed).coalesce(1)
    frame.write.format("delta").save(f"file:{tmp_path / 'table'}")
    [file] = (tmp_path / "table").glob("*.parquet")
    assert repr(pq.read_table(file).to_pylist()) == repr(frame.toArrow().to_pylist())


def test_names_are_what_they_are(spark: SparkSession) -> None:
    """field 65: quotes, dots, blanks, emoji, reserved words, names of ours, names in two cases."""
    names = [
        'q"u`o',
        "a.b",
        " ",
        "\U0001f40d",
        "select",
        "row",
        "text 0",
        "value 0",
        RESCUED,
        "n" * 63,
    ]
    names += ["Case", "case"]
    columns = [
        TypedColumn(f"{name}.{at}`", column_of("int4", name=name)) for at, name in enumerate(names)
    ]
    row: dict[str, str | None] = {name: str(at) for at, name in enumerate(names)}
    row["a.b"] = "x"
    frame = frame_of(spark, [row]).withColumn("o`t.h", F.lit(7))
    [typed_row] = with_types(frame, columns).toArrow().to_pylist()
    assert typed_row == {
        "o`t.h": 7,
        **{column.name: None if at == 1 else at for at, column in enumerate(columns)},
        RESCUED: [("a.b.1`", "x")],
    }


def test_a_column_that_the_image_does_not_have_is_null(spark: SparkSession) -> None:
    [row] = with_types(
        frame_of(spark, [{}]),
        [TypedColumn("v", column_of("int4")), TypedColumn("w", column_of(""))],
    ).collect()
    assert (row.v, row.w, row[RESCUED]) == (None, None, None)


@pytest.mark.long
def test_the_examples_of_the_page_are_so(spark: SparkSession) -> None:
    for names, column, options in reference.COLUMNS:
        shown = reference.example(column, options)
        value, is_rescued = typed(F.col("row")["c"], column, options)
        as_json = F.to_json(F.struct(value.alias("v")), {"ignoreNullFields": "false"})
        frame = frame_of(spark, [{"c": shown.text}])
        assert frame.select(value.alias("v")).schema["v"].dataType.simpleString() == (
            delta_type(column, options).simpleString()
        )
        [(text, kept)] = frame.select(as_json, is_rescued).collect()
        assert (text, kept) == (f'{{"v":{shown.value}}}', False), names


@pytest.mark.long
def test_delta_widens_what_the_rules_say(spark: SparkSession, tmp_path: Path) -> None:
    """field 50: in place, the old values kept."""
    types: list[T.DataType] = [
        *(T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()),
        *(T.DecimalType(10, 2), T.DecimalType(12, 2), T.DecimalType(12, 4), T.DecimalType(11, 4)),
        *(T.DecimalType(20, 0), T.DecimalType(19, 0), T.DateType(), T.TimestampNTZType()),
        *(T.TimestampType(), T.StringType(), T.ArrayType(T.IntegerType())),
    ]
    table = f"delta.`file:{tmp_path / 'widened'}`"
    pairs = [(a, b) for a in types for b in types if a != b and not isinstance(b, T.ArrayType)]
    listed = ", ".join(f"c{n} {before.simpleString()}" for n, (before, _) in enumerate(pairs))
    spark.sql(
        f"create table {table} ({listed}) using delta"
        " tblproperties ('delta.enableTypeWidening' = 'true')"
    )
    chosen = [n for n, pair in enumerate(pairs) if widened(*pair)]
    refused = [n for n in range(len(pairs)) if n not in chosen][::3]
    values = {n: "date '2024-02-29'" if pairs[n][0] == T.DateType() else "-7" for n in chosen}
    names = ", ".join(f"c{n}" for n in values)
    spark.sql(f"insert into {table} ({names}) values ({', '.join(values.values())})")
    assert [n for n in chosen if not _retyped(spark, table, n, pairs[n][1])] == []
    assert [n for n in refused if _retyped(spark, table, n, pairs[n][1])] == []
    same = " and ".join(f"c{n} = {value}" for n, value in values.items())
    assert spark.sql(f"select 1 from {table} where {same}").count() == 1


def _retyped(spark: SparkSession, table: str, number: int, after: T.DataType) -> bool:
    try:
        spark.sql(f"alter table {table} alter column c{number} type {after.simpleString()}")
    except AnalysisException as error:
        if "CHANGE_COL" not in str(error.getCondition()):
            raise
        return False
    return True
