"""
Cases that other systems lost or spoilt, for copied rows and for streamed ones alike.

One scenario per server: all tables of all cases are copied by `setup`, changed under the running
stream, and read back from the files of the log without the product's readers. Two folds are
compared with the source: of all changes, and of the first copy and the stream alone, so that a
later copy cannot hide what the stream did wrong.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.capture.stream import current_lsn, stream
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.upkeep.reconcile import reconcile
from pgstream_dagster.upkeep.setup import setup
from tests.scenarios import cases
from tests.scenarios.cases import CASES, Case
from tests.support.harness import oracle, rows, runner
from tests.support.harness.scenario import CAPTURE, SETTLE_SECONDS, Row, run, settle, source_rows
from tests.support.plugins import cluster
from tests.support.plugins.cluster import Server, psql
from tests.support.reference import fold
from tests.support.reference.change import Change

# One pipeline has all cases; `make test-all` has one on each major.
MAJORS = [] if cluster.ALL else [pytest.mark.one_major("newest")]

pytestmark = [pytest.mark.timeout(900), *MAJORS]
"""The first test waits for the whole scenario."""


@dataclass(frozen=True)
class Table:
    """One table at rest: at the source, and in the log."""

    first_point: Lsn
    source: list[Row]
    changes: list[Change]
    folded: list[Row]
    folded_without_later_copies: list[Row]

    @property
    def copied(self) -> list[Change]:
        """The rows of its copies."""
        return [change for change in self.changes if change.op is Op.READ]

    @property
    def streamed(self) -> list[Change]:
        """Everything Postgres sent of it."""
        return [change for change in self.changes if change.op in oracle.STREAMED]

    def ops(self, op: Op) -> list[Change]:
        return [change for change in self.changes if change.op is op]

    def first_copied(self) -> list[Change]:
        """The rows that `setup` copied."""
        return [change for change in self.copied if at(change) == self.first_point]


Scenario = Mapping[str, Table]
"""By the name the case gives it."""


@pytest.fixture(scope="module")
def pipeline(
    postgres: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """A pipeline of a fresh database."""
    name = f"cases_{secrets.token_hex(3)}"
    psql(
        postgres.dsn,
        f"create database {name} template template0",
        # The least there is: transactions of some size are sent while they run.
        f"alter database {name} set logical_decoding_work_mem = '64kB'",
    )
    try:
        folder = tmp_path_factory.mktemp("cases")
        yield runner.new_pipeline(postgres.dsn_of(name), folder, capture=CAPTURE)
    finally:
        cluster._drop_database(postgres.dsn, name)


@pytest.fixture(scope="module")
def scenario(pipeline: Pipeline) -> Scenario:
    """
    Every case has happened, and all is quiet.

    Copy, stream, wait for the copies of what is new, stream on, restart a few times; read.
    """
    dsn = pipeline.dsn
    for case in CASES:
        run(dsn, case.copied)
    point = max(copied.consistent_point for copied in setup(pipeline))
    with runner.streaming(pipeline) as check:
        for case in CASES:
            run(dsn, case.streamed)
        settle(pipeline, check)
        for case in CASES:
            run(dsn, case.later)
        settle(pipeline, check)
    for number in range(1, cases.RESTARTS + 1):
        run(dsn, [f"insert into restarted (id, a) values ({number}, 'run {number}')"])
        stream(pipeline, stop=threading.Event(), until=current_lsn(pipeline))
    return read(pipeline, point)


# --- reading ----------------------------------------------------------------------------------


def read(pipeline: Pipeline, point: Lsn) -> Scenario:
    """Every case's tables, from the source and from the log's files as they lie."""
    log = runner.change_log(pipeline)
    versions = rows.schemas(oracle.folder_of(pipeline.lake.schema_log))
    changes: dict[int | None, list[Change]] = {}
    for file in rows.active_files(log):
        for change in oracle.rows(log, file):
            changes.setdefault(change.relation_id, []).append(change)
    tables: dict[str, Table] = {}
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        connection.execute("set timezone to 'UTC'")
        for name in (table for case in CASES for table in case.tables):
            oid, source = source_rows(connection, name)
            of_one = sorted(changes.get(oid, []), key=lambda change: change.position)
            without = [c for c in of_one if c.op not in (Op.COPY, Op.READ) or at(c) <= point]
            schemas = rows.in_order(of_one, versions)
            tables[name] = Table(
                point,
                source,
                of_one,
                [row.image for row in fold.fold(of_one, schemas)],
                [row.image for row in fold.fold(without, schemas)],
            )
    return tables


def at(change: Change) -> Lsn:
    return change.position.commit_lsn


def bag(images: Sequence[Row]) -> rows.Rows:
    return Counter(fold.entries(row) for row in images)


def by(images: Sequence[Row], column: str = "id") -> dict[str | None, Row]:
    by_value = {row[column]: row for row in images}
    assert len(by_value) == len(images), f"two rows of one {column}"
    return by_value


# --- every case -------------------------------------------------------------------------------

TABLES = [
    pytest.param(case, table, id=f"{case.name}-{table}" if len(case.tables) > 1 else case.name)
    for case in CASES
    for table in case.tables
]


@pytest.mark.parametrize(("case", "table"), TABLES)
def test_log_folds_to_the_source(scenario: Scenario, case: Case, table: str) -> None:
    at_rest = scenario[table]
    assert at_rest.source, "the case has rows at its end"
    assert bool(at_rest.first_copied()) == (table not in case.born)
    assert at_rest.copied
    assert_equal(at_rest.folded, at_rest.source)


@pytest.mark.parametrize(
    ("case", "table"), [p for p in TABLES if not cast("Case", p.values[0]).copy_decides]
)
def test_stream_alone_leads_to_the_source(scenario: Scenario, case: Case, table: str) -> None:
    at_rest = scenario[table]
    assert at_rest.streamed
    assert_equal(at_rest.folded_without_later_copies, at_rest.source)


@pytest.mark.parametrize(("case", "table"), TABLES)
def test_every_streamed_change_is_there_once(scenario: Scenario, case: Case, table: str) -> None:
    positions = Counter(change.position for change in scenario[table].changes)
    assert positions and set(positions.values()) == {1}


def assert_equal(actual: Sequence[Row], expected: Sequence[Row]) -> None:
    missing, extra = bag(expected) - bag(actual), bag(actual) - bag(expected)
    assert not missing and not extra, (
        f"missing {rows._shown(missing)}; too many {rows._shown(extra)}"
    )


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [value.name for value in cases.VALUES])
def test_value_is_the_same_copied_inserted_and_updated(scenario: Scenario, name: str) -> None:
    table = scenario["everything"]
    expected = by(table.source)[str(cases.COPIED_ID)][name]
    assert expected is not None
    copied = {c.after["id"]: c.after[name] for c in table.copied if c.after}
    inserted = {c.after["id"]: c.after[name] for c in table.ops(Op.INSERT) if c.after}
    updated = {c.after["id"]: c.after[name] for c in table.ops(Op.UPDATE) if c.after}
    assert copied[str(cases.COPIED_ID)] == expected
    assert inserted[str(cases.STREAMED_ID)] == expected
    assert updated[str(cases.UPDATED_ID)] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("numeric_nan", "NaN"),
        ("numeric_infinity", "Infinity"),
        ("numeric_29_and_21_digits", "12345678901234567890123456789.123456789012345678901"),
        ("numeric_38_10", "12345678901234567890.1234567891"),
        ("float8_minus_infinity", "-Infinity"),
        ("date_infinity", "infinity"),
        ("timestamp_minus_infinity", "-infinity"),
        ("array_two_dimensions", '{{a,"b,\\"c"},{NULL,""}}'),
        ("array_lower_bound", "[0:1]={5,6}"),
        ("array_null_element", "{1,NULL,3}"),
        ("interval_mixed", "1 year 2 mons -3 days +04:05:06.789"),
        ("timetz", "12:34:56.5+05:30"),
        ("jsonb_wide_number", '{"n": 123456789012345678901234567890.000000000000001}'),
        ("jsonb_null_literal", "null"),
        ("bool_true", "t"),
        ("char_padded", "ab      "),
        ("inet_host", "192.168.1.5"),
        ("text_empty", ""),
    ],
)
def test_value_is_what_a_client_would_see(scenario: Scenario, name: str, expected: str) -> None:
    images = by(scenario["everything"].folded)
    for id_ in (cases.COPIED_ID, cases.STREAMED_ID, cases.UPDATED_ID):
        assert images[str(id_)][name] == expected


@pytest.mark.parametrize("id_", [cases.COPIED_NULLS_ID, cases.STREAMED_NULLS_ID])
def test_null_is_null_in_every_type(scenario: Scenario, id_: int) -> None:
    image = by(scenario["everything"].folded)[str(id_)]
    assert image == {"id": str(id_)} | dict.fromkeys((v.name for v in cases.VALUES), None)


# --- rows and keys ----------------------------------------------------------------------------


def test_0_rows_of_every_run_arrive(scenario: Scenario) -> None:
    ids = [c.key for c in scenario["restarted"].ops(Op.INSERT)]
    assert ids == [(str(number),) for number in range(1, cases.RESTARTS + 1)]


@pytest.mark.parametrize("table", ["toasted", "toasted_full"])
def test_11_untouched_large_value_stays(scenario: Scenario, table: str) -> None:
    at_rest = scenario[table]
    assert sorted(by(at_rest.folded)) == ["1", "12", "13"]
    assert {len(row["doc"] or "") for row in at_rest.folded} == {98_304}
    updates = at_rest.ops(Op.UPDATE)
    assert len(updates) == 5
    for change in updates:
        assert change.after is not None
        # FULL sends the old row whole, which completes the new one.
        assert ("doc" in change.after) == (table == "toasted_full")


def test_12_a_key_that_changed_leaves_nothing_behind(scenario: Scenario) -> None:
    at_rest = scenario["rekeyed"]
    assert sorted(map(int, by(at_rest.folded)), key=abs) == [1, 3, 4, 101, 1002, 1102]
    moved = {(c.old_key, c.key) for c in at_rest.ops(Op.UPDATE)}
    assert {(("2",), ("1002",)), (("102",), ("1102",))} <= moved
    assert {id_: by(at_rest.folded)[id_]["v"] for id_ in "34"} == {"3": "swaps b", "4": "swaps a"}


def test_13_a_composite_key_changes_in_part_and_whole(scenario: Scenario) -> None:
    moved = {(c.old_key, c.key) for c in scenario["composite"].ops(Op.UPDATE)}
    assert moved == {
        (("x", "1"), ("xx", "101")),
        (("x", "11"), ("xx", "111")),
        (("y", "1"), ("z", "1")),
        (("y", "11"), ("z", "11")),
    }


def test_14_a_date_is_a_key(scenario: Scenario) -> None:
    at_rest = scenario["dated"]
    assert {(row["day"], row["id"]) for row in at_rest.folded} == {
        ("2024-03-01", "1"),
        ("2024-03-01", "2"),
        ("infinity", "1"),
        ("infinity", "2"),
    }
    keys = {c.key for c in at_rest.ops(Op.DELETE)}
    assert keys == {("0044-03-15 BC", "1"), ("0044-03-15 BC", "2")}


def test_15_truncate_empties_at_its_place(scenario: Scenario) -> None:
    at_rest = scenario["emptied"]
    assert [row["id"] for row in at_rest.folded_without_later_copies] == ["51"]
    ops = [c.op for c in at_rest.streamed]
    insert, truncate = Op.INSERT, Op.TRUNCATE
    assert ops == [*[insert] * 4, truncate, insert, insert, truncate, insert]


def test_16_truncate_cascade_empties_both(scenario: Scenario) -> None:
    parent, child = scenario["parent"], scenario["child"]
    [of_parent], [of_child] = parent.ops(Op.TRUNCATE), child.ops(Op.TRUNCATE)
    assert at(of_parent) == at(of_child)
    assert parent.folded_without_later_copies == [{"id": "7"}]
    assert child.folded_without_later_copies == [{"id": "8", "of": "7"}]


def test_17_rows_without_a_key_count(scenario: Scenario) -> None:
    at_rest = scenario["keyless"]
    assert len(at_rest.copied) == 5 and len(at_rest.streamed) == 5
    assert {c.key for c in at_rest.changes} == {None}
    counts = Counter((row["a"], row["b"]) for row in at_rest.folded)
    assert counts == {("1", "x"): 3, ("2", None): 3, (None, None): 3, ("3", ""): 1}


def test_18_deleting_one_of_equal_rows_leaves_the_others(scenario: Scenario) -> None:
    counts = Counter((row["a"], row["b"]) for row in scenario["duplicates"].folded)
    assert counts == {("1", "copied"): 1, ("1", "one"): 1, ("2", "streamed"): 1, ("2", "one"): 1}


def test_19_tables_of_one_name_are_apart(scenario: Scenario) -> None:
    first, second = scenario["one.same"], scenario["two.same"]
    assert {(c.namespace, c.relation) for c in first.changes} == {("one", "same")}
    assert {(c.namespace, c.relation) for c in second.changes} == {("two", "same")}
    assert by(first.folded) == {"2": {"id": "2", "v": "one"}}


def test_20_what_was_rolled_back_was_never_there(scenario: Scenario) -> None:
    at_rest = scenario["undone"]
    assert not [c for c in at_rest.changes if c.after and c.after["v"] == "never"]
    images = by(at_rest.folded)
    assert [images[id_]["v"] for id_ in ("10", "11", "20", "1")] == [
        "before",
        "after",
        "c",
        "at last",
    ]
    of_20 = [c.op for c in at_rest.streamed if c.key == ("20",)]
    assert of_20 == [Op.INSERT, Op.UPDATE, Op.DELETE, Op.INSERT]


def test_21_names_keep_case_spaces_and_quotes(scenario: Scenario) -> None:
    at_rest = scenario[cases.MIXED]
    named = {(c.namespace, c.relation) for c in at_rest.changes}
    assert named == {("Mixed Case", 'Order "Lines" 😀')}
    row = by(at_rest.folded, "Line Id")["12"]
    assert row == {
        "Line Id": "12",
        "select": "a",
        "Größe": "b",
        "größe": "x",
        "a.b": "d",
        "%s": "e",
    }


def test_22_generated_columns_are_alike_copied_and_streamed(scenario: Scenario) -> None:
    at_rest = scenario["counted"]
    assert len({frozenset(row) for row in at_rest.folded}) == 1
    assert {row["id"] for row in at_rest.folded} == {"1", "2", "4", "5"}
    for row in at_rest.folded:
        assert row.get("double", str(2 * int(row["a"] or 0))) == str(2 * int(row["a"] or 0))


def test_23_a_row_moves_between_partitions(scenario: Scenario) -> None:
    at_rest = scenario["parted"]
    assert {(c.relation) for c in at_rest.changes} == {"parted"}
    days = {row["id"]: row["day"] for row in at_rest.folded}
    assert [days[id_] for id_ in ("5", "10", "15", "20", "1", "11", "101")] == list("1212333")
    assert len(at_rest.folded) == 21


def test_23_a_partition_brings_its_rows(scenario: Scenario) -> None:
    values = {row["id"]: row["v"] for row in scenario["joined"].folded}
    assert values == {
        "1": "copied!",
        "2": "streamed!",
        "3": "before it joined!",
        "4": "after it joined!",
    }


def test_33_a_large_transaction_is_whole_and_in_order(scenario: Scenario) -> None:
    inserts = scenario["large"].ops(Op.INSERT)
    assert len({at(change) for change in inserts}) == 1
    assert [c.position.ordinal for c in inserts] == list(range(cases.LARGE_ROWS))
    assert [c.key for c in inserts] == [(str(n),) for n in range(1, cases.LARGE_ROWS + 1)]


# --- definitions ------------------------------------------------------------------------------


def test_24_columns_come_go_and_change_names(scenario: Scenario) -> None:
    images = by(scenario["altered"].folded_without_later_copies)
    assert images == {
        "1": {"id": "1", "renamed": "b", "c": "7"},
        "2": {"id": "2", "renamed": "b", "c": "9"},
        "3": {"id": "3", "renamed": "b", "c": "9"},
        "4": {"id": "4", "renamed": "b", "c": "8"},
        "5": {"id": "5", "renamed": "b", "c": None},
    }


def test_25_a_value_that_needs_the_wider_type_arrives(scenario: Scenario) -> None:
    values = {row["id"]: row["n"] for row in scenario["widened"].folded}
    assert values == {
        "1": "1",
        "2": "-2147483647",
        "3": "-3",
        "4": "9007199254740993",
        "5": "-9223372036854775808",
    }


def test_25_a_table_whose_values_were_rewritten_is_copied_again(scenario: Scenario) -> None:
    at_rest = scenario["retyped"]
    assert len(at_rest.ops(Op.COPY)) >= 2
    assert by(at_rest.folded)["1"] == {"id": "1", "n": "n = 1.50", "at": "2024-01-01 12:00:00+00"}


def test_26_two_columns_added_at_once_both_arrive(scenario: Scenario) -> None:
    assert by(scenario["grown"].folded_without_later_copies) == {
        "1": {"id": "1", "a": "copied", "e": None, "f": "f"},
        "2": {"id": "2", "a": "streamed", "e": None, "f": "f"},
        "3": {"id": "3", "a": "streamed", "e": "3", "f": None},
    }


def test_27_a_renamed_table_goes_on(scenario: Scenario) -> None:
    at_rest = scenario["new_name"]
    assert [c.relation for c in at_rest.streamed] == ["old_name", *["new_name"] * 4]
    assert sorted(by(at_rest.folded)) == ["1", "2", "3", "4"]
    assert sorted(by(scenario["born_later"].folded)) == ["1", "2"]


def test_28_a_table_made_from_a_query_has_its_very_rows(scenario: Scenario) -> None:
    assert len(scenario["made_as"].folded_without_later_copies) == 26


def test_29_a_new_schema_stops_nothing(scenario: Scenario) -> None:
    assert sorted(by(scenario["founded.t"].folded)) == ["1", "2", "3"]


def test_30_a_table_is_where_the_search_path_put_it(scenario: Scenario) -> None:
    elsewhere = scenario["elsewhere.unqualified"]
    assert {c.namespace for c in elsewhere.changes} == {"elsewhere"}
    assert {row["v"] for row in elsewhere.folded} == {"elsewhere", "later"}
    assert {row["v"] for row in scenario["public.unqualified"].folded} == {"public"}


def test_31_statements_in_one_string_apply_in_order(scenario: Scenario) -> None:
    rows_ = by(scenario["four"].folded_without_later_copies)
    assert {id_: (row["a"], row["b"]) for id_, row in rows_.items()} == {
        "1": ("changed", "7"),
        "2": ("before", "7"),
        "3": ("after", "8"),
    }
    assert {row["b"] for row in scenario["four_new"].folded} == {"7", "8", "9"}


def test_32_a_new_label_of_an_enum_arrives(scenario: Scenario) -> None:
    labels = {row["id"]: row["w"] for row in scenario["moody"].folded}
    assert labels == {"1": "snow", "2": "rain", "3": "snow"}


# --- the product itself -------------------------------------------------------------------------

RECONCILED = [
    "public.altered",
    "public.everything",
    "public.keyless",
    "public.parted",
    "public.toasted_full",
    "public.widened",
]
"""One of each kind: the product's own fold has tests with many more histories."""


@pytest.mark.long
@pytest.mark.slow
def test_reconcile_finds_no_difference(pipeline: Pipeline, scenario: Scenario) -> None:
    with runner.streaming(pipeline):
        reconciliation = reconcile(pipeline, RECONCILED, timeout_seconds=SETTLE_SECONDS)
    assert [table.table for table in reconciliation.tables] == RECONCILED
    assert reconciliation.identical, [
        table for table in reconciliation.tables if not table.identical
    ]
