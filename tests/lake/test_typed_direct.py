"""Changes by Arrow and Kernel leave a table as a MERGE of Spark leaves it, for every reader."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.delta import jvm
from pgstream_dagster.delta.kernel import kernel
from pgstream_dagster.errors import MergeOvertaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables import direct
from pgstream_dagster.tables.columns import Layout, layout, quoted
from pgstream_dagster.tables.increment import IS_THERE, KEY, ORIGIN, REFERRED
from pgstream_dagster.tables.locate import Finder, Key
from pgstream_dagster.tables.rows import keyed_rows
from pgstream_dagster.tables.target import Build, Target

RELATION, EPOCH = 7, 1

TEXTS: Final = {
    "text": ["", "plain", "é" * 40, "\U0001f40d", "\x01\u2028"],
    "bool": ["t", "f"],
    "int2": ["-32768", "0", "32767"],
    "int4": ["-2147483648", "7"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "float4": ["-0", "NaN", "Infinity", "1e-45", "3.4028235e+38"],
    "float8": ["-0", "0", "NaN", "-Infinity", "5e-324", "0.1"],
    "numeric(6,2)": ["0.00", "-9999.99", "NaN"],
    "numeric(15,3)": ["123456789012.345"],
    "numeric(38,10)": ["-1234567890123456789012345678.0123456789"],
    "date": ["0001-01-01", "1582-10-10", "9999-12-31", "infinity", "0044-03-15 BC"],
    "timestamp": ["0001-01-01 00:00:00", "1582-10-10 01:02:03.000001", "infinity"],
    "timestamptz": ["1900-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "-infinity"],
    "bytea": ["\\x", "\\x00ff10"],
    "int4[]": ["{}", "{1,NULL,-3}", "{{1},{2}}"],
    "text[]": ['{a,"b c",NULL,"NULL",""}', "{}"],
    "daterange": ["empty", "[2024-01-01,2024-02-01)", "(,2024-02-01)", "[2024-01-01,infinity)"],
    "int4multirange": ["{}", "{[1,3),[5,7)}"],
    "hstore": ['"a"=>NULL, "b"=>"\\"x\\""', ""],
    "uuid": ["7d444840-9dc0-11d1-b245-5ffdce74fad2"],
}
"""Texts of types as Postgres writes them; some are rescued."""

OLDER, NEWER, NEWEST = 1_000, 2_000, 3_000

Text = str | None


def columns() -> tuple[Column, ...]:
    key = (Column("id", 1, 20, "bigint", value_type="int8"), named(2, "day", "date"))
    return (*key, *(named(n, f"c {n}", type_) for n, type_ in enumerate(TEXTS, 3)))


def named(attnum: int, name: str, type_: str) -> Column:
    base, _, rest = type_.partition("(")
    if not rest:
        return Column(name, attnum, 0, type_, value_type=base)
    precision, scale = map(int, rest.rstrip(")").split(","))
    return Column(name, attnum, 0, type_, (precision << 16 | scale) + 4, value_type=base)


SCHEMA: Final = TableSchema(
    EPOCH, RELATION, "public", "t", ReplicaIdentity.DEFAULT, columns(), ("id", "day")
)


def outcomes(spark: SparkSession, rows: Sequence[tuple[list[Text], bool]], at: int) -> DataFrame:
    """What `increment.outcome` gives for these keys, with random values."""
    rng = random.Random(at)
    listed = [
        {
            "relation_id": RELATION,
            KEY: key,
            IS_THERE: is_there,
            "row": list(row(rng, key).items()) if is_there else None,
            "commit_lsn": at,
            "ordinal": n,
            "committed_at": 1_700_000_000_000_000 + n,
        }
        for n, (key, is_there) in enumerate(rows)
    ]
    types = {
        "relation_id": pa.int64(),
        KEY: pa.list_(pa.string()),
        IS_THERE: pa.bool_(),
        "row": pa.map_(pa.string(), pa.string()),
        "commit_lsn": pa.int64(),
        "ordinal": pa.int64(),
        "committed_at": pa.timestamp("us", "UTC"),
    }
    frame = spark.createDataFrame(pa.Table.from_pylist(listed, pa.schema(list(types.items()))))
    no_names = F.lit(None).cast("array<string>")
    return frame.withColumns({ORIGIN: no_names, REFERRED: no_names})


def row(rng: random.Random, key: list[Text]) -> dict[str, Text]:
    values = {f"c {n}": rng.choice([*texts, None]) for n, texts in enumerate(TEXTS.values(), 3)}
    return {"id": key[0], "day": key[1], **values}


def key(n: int) -> list[Text]:
    """Of these rows, some have a text that a date cannot hold."""
    return [str(n // 2), ("infinity", "2024-01-01")[n % 2]]


class Twin:
    """One table, by Spark or directly."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.layout: Layout = layout(SCHEMA, {})
        self.spark, self.folder = spark, folder
        self.gateway = jvm.gateway()
        self.target = Target(f"file:{folder}", spark, self.gateway)
        self.build = Build.new("p", EPOCH, RELATION, Lsn(1), Lsn(OLDER))

    def adds(self) -> list[dict[str, Any]]:
        delta = kernel(self.gateway)
        return delta.adds(delta.load(self.target.uri))

    @property
    def has_vectors(self) -> bool:
        return any(add.get("deletionVector") for add in self.adds())

    def typed(self, rows: Sequence[tuple[list[Text], bool]], at: int) -> DataFrame:
        return keyed_rows(outcomes(self.spark, rows, at), self.layout, EPOCH)

    def begin(self, rows: Sequence[tuple[list[Text], bool]]) -> None:
        with self.target.held():
            self.target.rebuild(self.typed(rows, OLDER).drop(IS_THERE), self.layout, self.build)

    def merge(self, rows: Sequence[tuple[list[Text], bool]], at: int) -> None:
        with self.target.held():
            self.target.merge(self.typed(rows, at), self.layout, self.build.app, Lsn(at))

    def change(self, rows: Sequence[tuple[list[Text], bool]], at: int) -> int | None:
        typed = self.typed(rows, at).select(IS_THERE, *map(quoted, self.layout.names)).toArrow()
        with self.target.held():
            on = self.target.direct(self.layout)
            assert on is not None
            finder = Finder(typed, Key(self.layout.key, self.layout.rescuable(self.layout.key)))
            assert finder.is_unique
            new = typed.filter(typed.column(IS_THERE)).select(self.layout.names)
            return self.target.change(new, finder, on, self.build.app, Lsn(at))

    def rows(self) -> Counter[str]:
        """Every value as text, to the last bit of a number."""
        return Counter(map(str, self.target.rows().toArrow().to_pylist()))

    def places(self) -> Counter[tuple[Text, Text, int]]:
        """The key of each row as texts, and the position of its last change."""
        rows = self.target.rows().select("id", "day", "_rescued", "_commit_lsn").collect()
        return Counter(
            (str(i), str(day) if day else dict(texts)["day"], at) for i, day, texts, at in rows
        )

    def actions(self) -> list[dict[str, Any]]:
        """Of the newest commit."""
        newest = max((self.folder / "_delta_log").glob("*.json"))
        return [json.loads(line) for line in newest.read_text().splitlines()]


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> tuple[Twin, Twin]:
    """The same rows in two tables."""
    by_spark, directly = Twin(spark, tmp_path / "spark"), Twin(spark, tmp_path / "direct")
    by_spark.begin([(key(n), True) for n in range(200)])
    directly.begin([(key(n), True) for n in range(200)])
    return by_spark, directly


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Twin:
    """One that is changed directly."""
    made = Twin(spark, tmp_path / "direct")
    made.begin([(key(n), True) for n in range(200)])
    return made


@pytest.mark.long
@pytest.mark.parametrize("tiny_bytes", [0, direct.TINY_BYTES], ids=["marked", "written again"])
def test_both_ways_leave_the_same_rows_and_files_of_the_same_types(
    both: tuple[Twin, Twin], monkeypatch: pytest.MonkeyPatch, tiny_bytes: int
) -> None:
    monkeypatch.setattr(direct, "TINY_BYTES", tiny_bytes)
    by_spark, directly = both
    assert by_spark.rows() == directly.rows()
    for at, changed in (
        (NEWER, [(key(n), n % 3 > 0) for n in range(150, 260)]),
        (NEWEST, [(key(n), n % 2 > 0) for n in range(100, 300)]),
    ):
        by_spark.merge(changed, at)
        count = directly.change(changed, at)
        assert directly.rows() == by_spark.rows()
        assert count == by_spark.rows().total() == directly.target.count()
        assert directly.change(changed, at) is None  # it is there already
        assert directly.has_vectors is (at == NEWER and not tiny_bytes)
    assert newest_schema(directly) == newest_schema(by_spark)
    state = directly.target.state()
    assert state is not None
    assert state.position == NEWEST


def newest_schema(twin: Twin) -> list[str]:
    """Names, ids and types of the columns of the newest data file, without names that differ."""
    path = max(twin.folder.rglob("*.parquet"), key=lambda p: (p.stat().st_mtime_ns, p.name))
    fields = pq.ParquetFile(path).schema_arrow
    ids = [field.metadata[b"PARQUET:field_id"] for field in fields]
    parquet = pq.ParquetFile(path).schema
    leaves = [parquet.column(n) for n in range(len(parquet))]
    types = [(c.physical_type, str(c.logical_type), c.max_definition_level) for c in leaves]
    return [*map(str, ids), *map(str, types)]


@pytest.mark.long
def test_a_file_without_rows_is_removed_and_small_files_are_joined(
    table: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "SMALL_FILES", 4)
    monkeypatch.setattr(direct, "TINY_BYTES", 0)
    expected = dict.fromkeys(range(200), OLDER)
    for at in range(NEWER, NEWER + 120, 20):
        there, gone = range(at, at + 20), range(at - 10, at)
        table.change([(key(n), n in there) for n in (*there, *gone)], at)
        for n in gone:
            expected.pop(n, None)
        expected.update(dict.fromkeys(there, at))
        assert table.places() == Counter((*key(n), at) for n, at in expected.items())
    assert len(table.adds()) <= 4  # of seven that the table was given
    assert table.has_vectors
    table.change([(key(n), False) for n in expected], NEWEST)
    assert table.places() == Counter()
    assert not [action for action in table.actions() if "add" in action]


@pytest.mark.long
def test_a_commit_of_another_process_ends_a_change(table: Twin) -> None:
    on = table.target.direct(table.layout)
    assert on is not None
    before = table.rows()
    table.spark.sql(f"OPTIMIZE delta.`{table.target.uri}`")
    table.spark.sql(f"DELETE FROM delta.`{table.target.uri}` WHERE id = 0")
    typed = table.typed([(key(9), True)], NEWER).select(*map(quoted, table.layout.names))
    with pytest.raises(MergeOvertaken), table.target.held():
        table.target.change(typed.toArrow(), None, on, table.build.app, Lsn(NEWER))
    assert table.rows().total() == before.total() - 2
