"""
Delta tables read by one library: `python tests/readers/read.py READER [FOLDER FILE]...`.

Run in a process of its own, and imports nothing of the package. Writes an Arrow file with the rows
of each folder, or the error; and what the reader's own filter and aggregate say if the table has a
column `state`. Spark takes its settings from the environment, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

Read = Callable[[str], tuple[pa.Table, tuple[int, Any] | None]]

PAID: Final = "select count(*), sum(amount) from t where state = 'paid' and id > 100"


def spark(folder: str) -> tuple[pa.Table, tuple[int, Any] | None]:
    """Spark SQL with Delta's own jars."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    builder = SparkSession.builder.master("local[2]")
    for name, value in json.loads(os.environ["SPARK_SETTINGS"]).items():
        builder = builder.config(name, value)
    rows = builder.getOrCreate().sql(f"select * from delta.`{folder}`")
    rows.createOrReplaceTempView("t")
    paid = tuple(rows.sparkSession.sql(PAID).collect()[0]) if "state" in rows.columns else None
    variants = [field.name for field in rows.schema if field.dataType.typeName() == "variant"]
    for name in variants:
        rows = rows.withColumn(name, F.to_json(name))
    return rows.toArrow(), paid


def duckdb(folder: str) -> tuple[pa.Table, tuple[int, Any] | None]:
    """DuckDB with its extension `delta`."""
    import duckdb as library
    import duckdb_extension_delta

    package = Path(str(duckdb_extension_delta.__file__)).parent
    [extension] = package.glob("extensions/*/delta.duckdb_extension")
    connection = library.connect()
    connection.execute(f"load '{extension}'")
    connection.execute("set timezone = 'UTC'")
    connection.execute(f"create view t as from delta_scan('{folder}')")
    types = {name: type_ for name, type_, *_ in connection.execute("describe t").fetchall()}
    texts = [
        f"case when {name} is not null then {name}::json end as {name}"
        for name, type_ in types.items()
        if type_ == "VARIANT"
    ]
    chosen = f"* replace ({', '.join(texts)})" if texts else "*"
    paid = connection.execute(PAID).fetchone() if "state" in types else None
    return connection.execute(f"select {chosen} from t").to_arrow_table(), paid


def deltalake(folder: str) -> tuple[pa.Table, tuple[int, Any] | None]:
    """delta-rs, by its SQL."""
    from deltalake import DeltaTable, QueryBuilder

    builder = QueryBuilder().register("t", DeltaTable(folder))
    rows = pa.table(builder.execute("select * from t").read_all())
    if "state" not in rows.column_names:
        return rows, None
    [paid] = pa.table(builder.execute(PAID).read_all()).to_pylist()
    return rows, tuple(paid.values())


def deltalake_dataset(folder: str) -> tuple[pa.Table, tuple[int, Any] | None]:
    """delta-rs, as a data set of pyarrow."""
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    rows = DeltaTable(folder).to_pyarrow_dataset()
    if "state" not in rows.schema.names:
        return rows.to_table(), None
    paid = rows.to_table(filter=(pc.field("state") == "paid") & (pc.field("id") > 100))
    return rows.to_table(), (len(paid), pc.sum(paid["amount"]).as_py())


def polars(folder: str) -> tuple[pa.Table, tuple[int, Any] | None]:
    """Polars alone."""
    import polars as pl

    return _of_polars(pl.scan_delta(folder))


def polars_deltalake(folder: str) -> tuple[pa.Table, tuple[int, Any] | None]:
    """Polars with the package of that name."""
    import polars_deltalake as library

    return _of_polars(library.scan_delta(folder))


def _of_polars(rows: Any) -> tuple[pa.Table, tuple[int, Any] | None]:
    import polars as pl

    names = rows.collect_schema().names()
    paid = None
    if "state" in names:
        chosen = rows.filter((pl.col("state") == "paid") & (pl.col("id") > 100))
        paid = chosen.select(pl.len(), pl.col("amount").sum()).collect().row(0)
    return rows.collect().to_arrow(), paid


READERS: Final[dict[str, Read]] = {
    "spark": spark,
    "duckdb": duckdb,
    "deltalake": deltalake,
    "deltalake_dataset": deltalake_dataset,
    "polars": polars,
    "polars_deltalake": polars_deltalake,
}


def write(rows: pa.Table, paid: tuple[int, Any] | None, file: str) -> None:
    """Leave what was read to the test."""
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    if paid is not None:
        Path(f"{file}.paid").write_text(f"{paid[0]} {paid[1]}", encoding="utf-8")


def main() -> None:
    """Read every folder; what a library raises is its answer."""
    reader, places = READERS[sys.argv[1]], sys.argv[2:]
    for folder, file in zip(places[::2], places[1::2], strict=True):
        try:
            write(*reader(folder), file)
        except Exception as error:  # noqa: BLE001
            Path(f"{file}.error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of a library may end the process while Python takes it down
