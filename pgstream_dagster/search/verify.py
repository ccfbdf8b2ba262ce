"""
An index against the fold of the log, document by document, value by value.

Both sides are read in Spark's tasks and come down to an id and a digest of what the document says:
members in order of their names, numbers with the digits they were written with; a member that is
null says what a missing one says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.search.build import named_failure
from pgstream_dagster.search.cluster import PAGE, Cluster, SearchSettings
from pgstream_dagster.search.control import Generation
from pgstream_dagster.search.fields import RESCUED

SAMPLE: Final = 10
DIGESTS_DDL: Final = "id STRING, digest BINARY"
DIGESTS: Final = pa.schema([("id", pa.string()), ("digest", pa.binary())])


@dataclass(frozen=True, slots=True)
class Difference:
    """How an index differs from the fold: how many documents, and the ids of a few."""

    documents: int  # in the index
    rows: int  # of the fold
    only_in_index: int
    only_in_log: int
    differing: int
    sample: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Nothing differs."""
        return self.only_in_index == self.only_in_log == self.differing == 0


def compare(
    found: DataFrame,
    generation: Generation,
    settings: SearchSettings,
    *,
    passed_over: Sequence[str] = (),
    slices: int = 2,
) -> Difference:
    """
    Compare the documents that searches see with those of the fold; runs a Spark job.

    Shape:
        found: the documents of the fold, as `build.documents` gives them.
        passed_over: ids that are not compared: dead letters.
        slices: readers of the index at the same time.

    Raises:
        BuildFailed: what ended a task, as its reason.
    """
    spark = found.sparkSession
    names = [field.name for field in generation.fields]
    log = found.select("id", "body").mapInArrow(_digests(names), DIGESTS_DDL)
    index = _read(spark, generation, settings, names, slices)
    joined = log.withColumnRenamed("digest", "in_log").join(
        index.withColumnRenamed("digest", "in_index"), "id", "full_outer"
    )
    if passed_over:
        joined = joined.where(~F.col("id").isin(list(passed_over)))
    log_only, index_only = F.col("in_index").isNull(), F.col("in_log").isNull()
    differs = log_only | index_only | (F.col("in_log") != F.col("in_index"))
    said = joined.select(
        F.count("in_index").alias("documents"),
        F.count("in_log").alias("rows"),
        F.count_if(index_only).alias("only_in_index"),
        F.count_if(log_only).alias("only_in_log"),
        F.count_if(F.col("in_log") != F.col("in_index")).alias("differing"),
        F.slice(F.sort_array(F.collect_set(F.when(differs, F.col("id")))), 1, SAMPLE).alias("ids"),
    )
    with named_failure(generation.index):
        [row] = said.collect()
    return Difference(
        row["documents"],
        row["rows"],
        row["only_in_index"],
        row["only_in_log"],
        row["differing"],
        tuple(row["ids"]),
    )


def digest(said: dict[str, Any], names: Sequence[str]) -> bytes:
    """Of what a document says in these fields; numbers are as `parsed` leaves them."""
    shown = {name: said[name] for name in (*names, RESCUED) if said.get(name) is not None}
    text = json.dumps(shown, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def parsed(text: str) -> Any:
    """JSON whose numbers stay the digits they were written with."""
    return json.loads(text, parse_int=_digits, parse_float=_digits)


def _digits(text: str) -> str:
    return f"\0{text}"  # no text of Postgres holds this character, so no string looks like it


_Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _digests(names: Sequence[str]) -> _Task:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            said = [digest(parsed(body), names) for body in each.column("body").to_pylist()]
            yield pa.RecordBatch.from_arrays([each.column("id"), pa.array(said)], schema=DIGESTS)

    return run


def _read(
    spark: SparkSession,
    generation: Generation,
    settings: SearchSettings,
    names: Sequence[str],
    slices: int,
) -> DataFrame:
    """Ids and digests of what searches see."""
    index = generation.index

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cluster = Cluster(settings)
        for each in batches:
            for number in each.column("id").to_pylist():
                for page in cluster.pages(index, _slice(number, slices), parsed):
                    ids = pa.array([hit["_id"] for hit in page])
                    said = pa.array([digest(hit["_source"], names) for hit in page])
                    yield pa.RecordBatch.from_arrays([ids, said], schema=DIGESTS)
        cluster.close()

    return spark.range(0, slices, 1, slices).mapInArrow(run, DIGESTS_DDL)


def _slice(number: int, slices: int) -> dict[str, Any]:
    body: dict[str, Any] = {"size": PAGE, "sort": ["_doc"]}
    return body if slices == 1 else {**body, "slice": {"id": number, "max": slices}}
