"""Documents against what their values mean, and the two renderings against each other."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.search import ids, ids_spark, render_spark
from pgstream_dagster.search.fields import RESCUED, Field
from pgstream_dagster.search.render import document, merged
from pgstream_dagster.search.types import KEYWORD
from pgstream_dagster.values.kinds import Kind
from pgstream_dagster.values.render import renderer
from pgstream_dagster.values.renderings import RENDERINGS
from tests.support.reference import texts
from tests.support.reference.strategies import EXAMPLES, TEXTS

SEEDS = st.integers(0, 1 << 32)
FORMS = list(RENDERINGS)
FIELDS = [
    Field(f"{'many ' if is_array else ''}{kind}", f"c{at}", at, kind, is_array, KEYWORD)
    for at, (kind, is_array) in enumerate(FORMS, start=1)
]
BROKEN = ["", "{", "}", "{}}", "{{}", "{a", '{"', "[", "[,", '"', "\\", "NULL", "{NULL,}", "{,}"]


@given(SEEDS)
@settings(max_examples=EXAMPLES, deadline=None)  # the first of a kind compiles its patterns
@pytest.mark.parametrize(("kind", "is_array"), FORMS)
def test_a_value_means_what_it_meant(kind: Kind, is_array: bool, seed: int) -> None:
    printed, meant = texts.drawn(Random(seed), kind, is_array)
    fragment = renderer(kind, is_array)(printed)
    if meant is texts.CANNOT:
        assert fragment is None
    else:
        assert fragment is not None
        assert json.loads(fragment) == meant
        assert "\n" not in fragment


@given(st.one_of(TEXTS, st.sampled_from(BROKEN), SEEDS.map(lambda seed: texts.text(Random(seed)))))
@settings(deadline=None)
@pytest.mark.parametrize(("kind", "is_array"), FORMS)
def test_a_text_of_another_type_is_json_or_cannot_be_indexed(
    kind: Kind, is_array: bool, printed: str
) -> None:
    if kind is Kind.JSON:
        return  # Postgres has checked it; doing so again would cost as much as all the rest
    fragment = renderer(kind, is_array)(printed)
    assert fragment is None or json.loads(fragment) is not None


@given(SEEDS)
@settings(deadline=None)
def test_a_partial_image_over_a_document_gives_the_document_of_the_whole(seed: int) -> None:
    random = Random(seed)
    older, newer = _image(random, Random.random), _image(random, Random.random)
    part = {column: value for column, value in newer.items() if random.random() < 0.5}
    stored = document(FIELDS, older)
    assert merged(FIELDS, stored, part) == document(FIELDS, {**older, **part})


@given(SEEDS)
@settings(deadline=None)
def test_a_document_says_each_column_once(seed: int) -> None:
    image = _image(Random(seed), Random.random)
    body = json.loads(document(FIELDS, image))
    rescued = body.pop(RESCUED, {})
    assert not {*body} & {*rescued}
    assert {*body} | {*rescued} == {field.name for field in FIELDS}
    assert rescued == {f.name: image[f.column] for f in FIELDS if f.name in rescued}


@given(st.lists(st.one_of(st.none(), TEXTS), min_size=2, max_size=3), SEEDS)
def test_keys_of_as_many_values_never_share_an_id(key: list[str | None], seed: int) -> None:
    random = Random(seed)
    other = [random.choice([value, None, "", "|", "\\", "N", "\\N", f"{value}|"]) for value in key]
    assert (ids.document_id(key) == ids.document_id(other)) == (key == other)


@pytest.mark.slow
def test_spark_gives_the_same_bytes(spark: SparkSession) -> None:
    """Many rows of every kind in one job; every third value is of another kind, or broken."""
    random = Random(20240229)
    images = [_image(random, lambda random: random.random() * 1.5) for _ in range(800)]
    images += [dict.fromkeys((field.column for field in FIELDS), value) for value in BROKEN]
    keys = [_key(random) for _ in images]
    rows = _frame(spark, images, keys)
    named = rows.select("place", "row", ids_spark.document_id(F.col("key")).alias("id"))
    bodies = render_spark.with_body(named, FIELDS).collect()
    for row in bodies:
        image = images[row.place]
        expected = document(FIELDS, image)
        assert row.body == expected, _difference(image, row.body, expected)
        assert row.id == ids.document_id(keys[row.place])
    assert len(bodies) == len(images)


@pytest.mark.slow
def test_spark_renders_long_values(spark: SparkSession) -> None:
    """Java walks a group that is not possessive with its stack: such a value would overflow it."""
    count = 20_000  # ten times what a stack of 1 MB holds
    images = [
        {"c": text}
        for text in (
            'a\n"\\' * count,
            "{" + ",".join(['"a\\"b"', "c", "NULL"] * count) + "}",
            "{" + ",".join(["1.5"] * count) + "}",
            ", ".join(f'"k{n}"=>"v\\\\"' for n in range(count)),
            "[" + ", ".join(['{"a": "1\\n"}'] * count) + "]",
            "[" + ",".join(["0.25"] * count) + "]",
            "{" + ",".join([f"[{n},{n + 1})" for n in range(count)]) + "}",
        )
    ]
    forms = [
        (Kind.TEXT, False),
        (Kind.TEXT, True),
        (Kind.NUMERIC, True),
        (Kind.HSTORE, False),
        (Kind.JSON, False),
        (Kind.VECTOR, False),
        (Kind.INTEGER_MULTIRANGE, False),
    ]
    fields = [Field(f"f{i}", "c", 1, *form, KEYWORD) for i, form in enumerate(forms)]
    rows = _frame(spark, images, [["1"]] * len(images))
    bodies = [render_spark.member(field, F.col("row")["c"]) for field in fields]
    own = F.array(*bodies)[F.col("place")]  # of each row the member of its own kind
    for place, member in rows.select("place", own).collect():
        fragment = renderer(*forms[place])(images[place]["c"])
        assert fragment is not None
        assert member == f'"f{place}":{fragment}'


def _image(random: Random, nulls: Any) -> dict[str, str | None]:
    """A row: mostly values of their fields' kinds, some NULLs, and with `nulls` > 1 others'."""
    image: dict[str, str | None] = {}
    for field in FIELDS:
        chance = nulls(random)
        kind, is_array = (field.kind, field.is_array) if chance < 1 else random.choice(FORMS)
        printed, _ = texts.drawn(random, kind, is_array)
        if field.kind is Kind.JSON and chance >= 1:
            printed = texts.text(random)  # never checked: whatever it is, both do the same
        image[field.column] = None if chance < 0.1 else printed
    return image


def _key(random: Random) -> list[str | None]:
    fixed = [None, "", "sha256:", "sha256:null", "é" * 256, "é" * 257, "a" * 512, "a" * 513]
    size = random.choice([1, 1, 2, 3])
    return [
        random.choice(fixed) if random.random() < 0.3 else texts.text(random) for _ in range(size)
    ]


def _frame(
    spark: SparkSession, images: list[dict[str, str | None]], keys: list[list[str | None]]
) -> Any:
    table = pa.table(
        {
            "place": pa.array(range(len(images)), pa.int32()),
            "row": pa.array(
                [list(image.items()) for image in images], pa.map_(pa.string(), pa.string())
            ),
            "key": pa.array(keys, pa.list_(pa.string())),
        }
    )
    return spark.createDataFrame(table)


def _difference(image: dict[str, str | None], given: str | None, expected: str) -> str:
    if given is None:
        return "no body"
    at = next((i for i, (a, b) in enumerate(zip(given, expected, strict=False)) if a != b), -1)
    return f"{given[max(0, at - 60) : at + 60]!r} but {expected[max(0, at - 60) : at + 60]!r}"


def test_every_kind_has_a_rendering_of_its_own_and_of_arrays() -> None:
    assert {*RENDERINGS} == {(kind, is_array) for kind in Kind for is_array in (False, True)}
