"""
Typed tables: rebuilding one, merging changes into a small and a large one, and into many at once.

`python -m benchmarks.tables` measures them alone. Beside each merge a plain MERGE of Spark by key
runs, of the same changes into a table of the same rows: without columns that were not sent, moved
keys, rescued values or a position.

Rounds that count come after one that does not: while Java compiles Spark, all takes twice as long.
`pgstream tables run` is a process that has that behind it; its first pass is measured as well.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.measure import load
from benchmarks.sources import Bench, bench
from pgstream_dagster.capture.stream import current_lsn, stream
from pgstream_dagster.changelog import replay
from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.delta import jvm, uri
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Merged
from pgstream_dagster.upkeep.setup import setup

LARGER = 4
"""How many times the rows of the small table the large one has."""

COLUMNS = (
    "id bigint primary key, k integer, ts timestamptz, a text, b text, flag boolean,"
    " amount numeric(12, 2)"
)

FILL = """
insert into {table}
select g, g % 1000, timestamptz '2026-01-01' + g * interval '1 second', md5(g::text),
    repeat(md5((g + 1)::text), 2), g % 2 = 0, (g % 100000)::numeric / 100
from generate_series(1, {rows}) g"""

CHANGE = """
with chosen as (select distinct (random() * {rows})::bigint as id
    from generate_series(1, {changes}))
update {table} t set k = k + 1, a = md5(random()::text) from chosen c where t.id = c.id
    and c.id % 10 < 8;
delete from {table} t where t.id in (select (random() * {rows})::bigint
    from generate_series(1, {changes} / 10));
insert into {table} select {rows} * {number} + g, 1, now(), 'new', 'new', true, 1
    from generate_series(1, {changes} / 10) g"""


CHANGES = 100_000
TABLES = 50


def costs(
    major: int, rows: int, rounds: int, *, changes: int = CHANGES, tables: int = TABLES
) -> dict[str, object]:
    """Seconds of every part, in rounds; the first of each part does not count."""
    with _prepared(major, rows, tables) as on:
        spark = jvm.spark(on.pipeline.jvm)
        rebuilt = _timed("first merge, all tables", lambda: merge_tables(on.pipeline))
        results: dict[str, object] = {"first_seconds": rebuilt}
        results["rebuild_rows_per_second"] = [_rebuilt(on, rows) for _ in range(rounds + 1)][1:]
        for table, size in (("small", rows), ("large", LARGER * rows)):
            merged = _merges(on, spark, table, size, changes=changes, rounds=rounds + 1)
            results[table] = merged[1:]
        many = [_many(on, tables, changes // 50, n) for n in range(2, rounds + 3)]
        return {**results, "many": many[1:]}


def _rebuilt(on: Bench, rows: int) -> tuple[float, float]:
    """Rows a second: of a table that was removed, and on request, compared with the fold."""
    folder = uri.local(on.pipeline.lake.typed_table("public.small"))
    assert folder is not None
    shutil.rmtree(folder)
    alone = _timed(f"{rows:,} rows written again", lambda: merge_tables(on.pipeline))
    compared = _timed(
        "  on request, compared with the fold",
        lambda: merge_tables(on.pipeline, rebuild=["public.small"]),
    )
    print(f"  {rows / alone:,.0f} rows/s (goal 120,000), {rows / compared:,.0f} on request")
    return rows / alone, rows / compared


def _merges(
    on: Bench, spark: SparkSession, table: str, rows: int, *, changes: int, rounds: int
) -> list[tuple[float, float]]:
    """(ours, plain) seconds a round."""
    plain, result = _plain_table(on, spark, table), list[tuple[float, float]]()
    for number in range(2, rounds + 2):
        after = _watermark(on)
        text = CHANGE.format(table=table, rows=rows, changes=changes, number=number)
        on.connection.execute(text.encode())
        _catch_up(on)
        ours = _timed(f"{changes:,} changes into {rows:,} rows", lambda: merge_tables(on.pipeline))
        floor = _timed("  plain MERGE", partial(_plain_merge, on, spark, table, plain, after))
        result.append((ours, floor))
    return result


def _many(on: Bench, tables: int, changes: int, number: int) -> float:
    for table in range(tables):
        text = CHANGE.format(table=f"t{table}", rows=10_000, changes=changes, number=number)
        on.connection.execute(text.encode())
    _catch_up(on)
    done: list[Merged] = []
    seconds = _timed(
        f"{tables} tables with about {changes:,} changes each",
        lambda: done.append(merge_tables(on.pipeline)),
    )
    assert len(done[0].tables) == tables
    return seconds


@contextmanager
def _prepared(major: int, rows: int, tables: int) -> Iterator[Bench]:
    names = {"small": rows, "large": LARGER * rows, **{f"t{n}": 10_000 for n in range(tables)}}
    with bench(major, tuple(f"create table {name} ({COLUMNS})" for name in names)) as made:
        config = made.pipeline.config.model_copy(update={"tables": TablesConfig()})
        on = replace(made, pipeline=replace(made.pipeline, config=config))
        for name, size in names.items():
            on.connection.execute(FILL.format(table=name, rows=size).encode())
        on.connection.execute("vacuum analyze")
        setup(on.pipeline)
        _catch_up(on)
        yield on


def _catch_up(on: Bench) -> None:
    stream(on.pipeline, stop=threading.Event(), until=current_lsn(on.pipeline))


def _watermark(on: Bench) -> Lsn:
    with on.pipeline.open() as opened:
        return opened.require_watermark()


def _plain_table(on: Bench, spark: SparkSession, table: str) -> str:
    """The rows of a typed table in a table of their own."""
    path = f"{on.pipeline.lake.uri}/plain_{table}"
    rows = spark.read.format("delta").load(on.pipeline.lake.typed_table(f"public.{table}"))
    own = [name for name in rows.columns if not name.startswith("_")]
    rows.select(own).write.format("delta").option("delta.enableDeletionVectors", "true").save(path)
    return path


def _plain_merge(on: Bench, spark: SparkSession, table: str, path: str, after: Lsn) -> None:
    log = replay.changes(spark, on.pipeline.lake, 1, after, _watermark(on))
    newest = Window.partitionBy("key").orderBy(F.desc("commit_lsn"), F.desc("ordinal"))
    last = (
        log.where(F.col("relation") == table)
        .withColumn("n", F.row_number().over(newest))
        .where("n = 1")
    )
    target = spark.read.format("delta").load(path)
    _view(last, target).createOrReplaceTempView("plain_changes")
    names = ", ".join(f"t.{name} = s.{name}" for name in target.columns)
    spark.sql(
        f"merge into delta.`{path}` t using plain_changes s on t.id = s.id"
        f" when matched and s.op = 'delete' then delete when matched then update set {names}"
        f" when not matched and s.op <> 'delete' then insert ({', '.join(target.columns)})"
        f" values ({', '.join(f's.{name}' for name in target.columns)})"
    )


def _view(last: DataFrame, target: DataFrame) -> DataFrame:
    def value(field: Any) -> Any:
        if field.name == "id":
            return F.col("key")[0].cast("bigint").alias("id")
        return F.col("after")[field.name].cast(field.dataType).alias(field.name)

    return last.select("op", *map(value, target.schema.fields))


def _timed(what: str, work: Callable[[], object]) -> float:
    began, cpu = time.perf_counter(), _cpu_seconds()
    work()
    seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    print(f"{what}: {seconds:.1f} s, {cpu:.1f} s of CPU (load {load():.1f})", flush=True)
    return seconds


def _cpu_seconds() -> float:
    """Of this process and its JVM; on a busy machine a steadier measure than time."""
    java: Any = jvm.gateway().jvm
    used = java.java.lang.ProcessHandle.current().info().totalCpuDuration().get().toMillis() / 1000
    return used + time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--tables", type=int, default=TABLES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--major", type=int, default=15)
    given = parser.parse_args()
    sizes = {"changes": given.changes, "tables": given.tables}
    print(costs(given.major, given.rows, given.rounds, **sizes))


if __name__ == "__main__":
    main()
