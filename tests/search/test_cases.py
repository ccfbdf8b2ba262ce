"""
Cases that other systems lost or spoilt, behind aliases: an index per table, kept current meanwhile.

The scenario of `tests.scenarios.cases` once more. All tables that have a key are copied, indexed,
and changed under the running stream and indexer; what an alias shows at the end is compared with
documents made of the source's own rows.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.fields import RESCUED
from pgstream_dagster.search.ids import document_id
from pgstream_dagster.search.index import Indexed
from pgstream_dagster.search.render import document
from pgstream_dagster.search.session import opened
from pgstream_dagster.upkeep.setup import setup
from tests.scenarios.cases import CASES as ALL_CASES
from tests.scenarios.cases import (
    COPIED_ID,
    COPIED_NULLS_ID,
    MIXED,
    STREAMED_ID,
    STREAMED_NULLS_ID,
    UPDATED_ID,
    VALUES,
    Case,
)
from tests.support.harness import runner, search_pipelines
from tests.support.harness.scenario import CAPTURE, run, settle, source_rows
from tests.support.plugins import cluster, search
from tests.support.plugins.cluster import ALL, LONG, Server, psql

SETTLE_SECONDS = 300.0
"""For the indices to be where the source is: tables of some cases are copied and indexed again."""

LOOK_SECONDS = 2.0
"""Between two looks at them: one takes as much CPU as many batches of changes."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.first,
    pytest.mark.one_major("newest"),
    pytest.mark.timeout(1200),
]

NO_KEY: Final = {"keyless", "duplicates", "made_as"}
"""Their rows are equal, so nothing distinguishes their documents."""

# PGSTREAM_TEST_ALL (`make test-search`): every case, eight minutes; else those that differ most.

DIFFERENT: Final = {"everything", "toasted", "rekeyed", "composite", "altered", MIXED}
LARGE: Final = "(select string_agg(md5(i || 'large'), '') from generate_series(1, 163840) i)"
"""Five MB that do not compress."""

WIDE: Final = Case(
    "large_text",
    ("wide",),
    copied=(
        "create table wide (id int primary key, n int, body text, doc jsonb)",
        f"insert into wide values (1, 0, {LARGE}, jsonb_build_object('body', {LARGE}))",
    ),
    streamed=(
        f"insert into wide values (2, 0, {LARGE}, jsonb_build_object('body', {LARGE}))",
        "update wide set n = 1",
    ),
)

CASES: Final = [
    *(case for case in ALL_CASES if ALL or DIFFERENT & {*case.tables}),
    *([WIDE] if ALL or LONG else []),
]
TABLES: Final = [table for case in CASES for table in case.tables if table not in NO_KEY]

TWICE: Final = "json_as_written"

Documents = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Behind:
    """The documents behind an alias, and the expected ones."""

    documents: Documents
    expected: Documents


def alias_of(prefix: str, table: str) -> str:
    return f"{prefix}{TABLES.index(table):02d}"


def config_of(table: str) -> IndexConfig:
    """All columns, but for a value that no engine takes: a JSON object with a key twice."""
    if table != "everything":
        return IndexConfig(table=table)
    names = [value.name for value in VALUES if value.name != TWICE]
    return IndexConfig(table=table, columns=("id", *names))


@pytest.fixture(scope="module")
def behind(
    postgres: Server,
    spark: SparkSession,
    search_node: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Behind]]:
    """The documents behind each table's alias, after every case has run."""
    name, prefix = f"search_{secrets.token_hex(3)}", f"c{secrets.token_hex(3)}-"
    psql(
        postgres.dsn,
        f"create database {name} template template0",
        f"alter database {name} set logical_decoding_work_mem = '64kB'",
    )
    try:
        folder = tmp_path_factory.mktemp("search-cases")
        plain = runner.new_pipeline(postgres.dsn_of(name), folder, capture=CAPTURE)
        indices = {alias_of(prefix, table): config_of(table) for table in TABLES}
        pipeline = search_pipelines.with_search(plain, search_node.url, **indices)
        happen(pipeline)
        yield {table: read(pipeline, alias_of(prefix, table), table) for table in TABLES}
    finally:
        cluster._drop_database(postgres.dsn, name)
        search._drop(search_node, prefix)


def happen(pipeline: Pipeline) -> None:
    """Copy, index, stream, wait for the copies of what is new, stream on, until all is quiet."""
    for case in CASES:
        run(pipeline.dsn, case.copied)
    setup(pipeline)
    with runner.streaming(pipeline) as check, search_pipelines.indexing(pipeline) as indexed:
        settle_indices(pipeline, indexed, born=False)
        for case in CASES:
            run(pipeline.dsn, case.streamed)
        settle(pipeline, check)
        for case in CASES:
            run(pipeline.dsn, case.later)
        settle(pipeline, check)
        settle_indices(pipeline, indexed, born=True)


def settle_indices(pipeline: Pipeline, indexed: Callable[[], Indexed], *, born: bool) -> None:
    """Wait until every alias shows what its table holds; the tests tell of those that do not."""
    waiting = {
        alias: config.table.removeprefix("public.")
        for alias, config in pipeline.config.search.items()
        if born or config.table.removeprefix("public.") not in BORN
    }
    deadline = time.monotonic() + SETTLE_SECONDS
    while waiting and time.monotonic() < deadline:
        indexed()
        for alias, table in list(waiting.items()):
            shown = read(pipeline, alias, table)
            if shown.documents != shown.expected:
                break
            del waiting[alias]
        time.sleep(LOOK_SECONDS)


BORN: Final = {"new_name", *(table for case in CASES for table in case.born)}
"""Tables that have their name only once the stream runs."""


def read(pipeline: Pipeline, alias: str, table: str) -> Behind:
    """An index and the documents of its table's rows, as the fields of the index say them."""
    with opened(pipeline) as session, psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        connection.execute("set timezone to 'UTC'")
        generation = session.live(alias)
        if generation is None:
            return Behind({}, {"nothing is behind the alias": {}})
        key = session.relation(alias).schema.key
        _, rows = source_rows(connection, table)
    names = {*(field.name for field in generation.fields), RESCUED}
    expected = {
        document_id(tuple(row[name] for name in key)): json.loads(document(generation.fields, row))
        for row in rows
    }
    shown = search_pipelines.documents(pipeline, alias)
    return Behind(comparable(shown, names), comparable(expected, names))


def comparable(documents: Documents, names: Collection[str]) -> Documents:
    """The members of the table's columns; a member that is null equals a missing one."""
    return {
        key: {name: value for name, value in members.items() if name in names and value is not None}
        for key, members in documents.items()
    }


@pytest.mark.parametrize(
    "table",
    [pytest.param(t, marks=pytest.mark.long) if t in WIDE.tables else t for t in TABLES],
)
def test_alias_shows_the_rows_of_its_table(behind: Mapping[str, Behind], table: str) -> None:
    assert behind[table].documents == behind[table].expected


@pytest.fixture
def everything(behind: Mapping[str, Behind]) -> Documents:
    """A document with a value of every type: copied, inserted, and updated from NULLs."""
    return behind["everything"].documents


@pytest.mark.parametrize("id_", [STREAMED_ID, UPDATED_ID])
def test_streamed_document_is_that_of_the_copied_row(everything: Documents, id_: int) -> None:
    assert everything[str(id_)] == everything[str(COPIED_ID)] | {"id": id_}


@pytest.mark.parametrize("id_", [COPIED_NULLS_ID, STREAMED_NULLS_ID])
def test_row_of_nulls_is_a_document_of_its_key(everything: Documents, id_: int) -> None:
    assert everything[str(id_)] == {"id": id_}


def test_every_value_is_in_the_document_as_itself_or_as_its_text(everything: Documents) -> None:
    document = everything[str(COPIED_ID)]
    shown = document.keys() | document[RESCUED].keys()
    assert {value.name for value in VALUES} - {TWICE, "jsonb_null_literal"} <= shown


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "bool_true": True,
        "int2_lowest": -32768,
        "int8_beyond_float": 9007199254740993,
        "float8_shortest": 0.30000000000000004,
        "text_empty": "",
        "text_says_null": "NULL",
        "char_padded": "ab      ",
        "date_ordinary": "2024-02-29",
        "timestamptz_ordinary": "2024-03-31T00:30:00Z",
        "timetz": "12:34:56.5+05:30",
        "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "jsonb_null_literal": None,
        "jsonb_nested": {"a": [1, {"b": None}, "\u00fc\U0001d11e"]},
        "inet_net": "192.168.1.5/24",
        "int4range": {"gte": 1, "lt": 6},
        "numrange_open": {"gt": 1.10},
        "multirange": [{"gte": 1, "lt": 3}, {"gte": 5, "lt": 9}],
        "enum_quotes": 'Ünïcode "quoted"',
        "domain": 12345678901234567890.5,
        "array_null_element": [1, None, 3],
        "array_empty": [],
        "array_two_dimensions": [["a", 'b,"c'], [None, ""]],
        "array_text": ["NULL", None, "", "a b", "{}", "\\"],
        "array_bool": [True, False, None],
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_value_is_what_a_reader_would_expect(
    everything: Documents, name: str, expected: object
) -> None:
    assert everything[str(COPIED_ID)].get(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "date_infinity": "infinity",
        "date_before_christ": "4713-01-01 BC",
        "timestamptz_minus_infinity": "-infinity",
        "int8range_empty": "empty",
        "array_float": "{NaN,Infinity,-0,0.1}",
        "array_date": "{infinity,2024-01-01,NULL}",
    }.items(),
)
def test_value_that_a_field_cannot_hold_is_kept_as_its_text(
    everything: Documents, name: str, expected: str
) -> None:
    document = everything[str(COPIED_ID)]
    assert name not in document
    assert document[RESCUED][name] == expected


@pytest.mark.long
def test_large_texts_are_alike_copied_and_streamed(behind: Mapping[str, Behind]) -> None:
    copied, streamed = behind["wide"].documents["1"], behind["wide"].documents["2"]
    assert copied | {"id": 2} == streamed
    assert len(streamed["body"]) == len(streamed["doc"]["body"]) == 5 << 20


def test_names_of_columns_are_the_names_of_fields(behind: Mapping[str, Behind]) -> None:
    shown = behind[MIXED].documents["11"]
    assert shown["Größe"] == "b"
    assert shown["größe"] == "x"
    assert shown["a_b"] == "d"
