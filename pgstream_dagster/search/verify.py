"""
An index against the fold of the log, document by document, value by value.

Both sides are read in Spark's tasks and come down to an id and a digest: of the document's bytes,
which both writers write alike and the engine gives back as they were. Only where bytes differ is a
document read for what it says: members in order of their names, numbers with the digits they were
written with; a member that is null says what a missing one says.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.search.build import named_failure
from pgstream_dagster.search.cluster import PAGE, Cluster, SearchSettings
from pgstream_dagster.search.control import Generation
from pgstream_dagster.search.fields import RESCUED

logger = logging.getLogger(__name__)

SAMPLE: Final = 10
DIGESTS_DDL: Final = "id STRING, digest STRING"
DIGESTS: Final = pa.schema([("id", pa.string()), ("digest", pa.string())])


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
    shards: int,
    passed_over: Sequence[str] = (),
) -> Difference:
    """
    Compare the documents that searches see with those of the fold; runs a Spark job.

    Shape:
        found: the documents of the fold, as `build.documents` gives them.
        shards: of the index; each is read by a task. A slice of a shard costs more than the shard,
            as the engine hashes the ids of all of it.
        passed_over: ids that are not compared: dead letters.

    Raises:
        BuildFailed: what ended a task, as its reason.
    """
    by_bytes = found.select("id", F.sha2("body", 256).alias("digest"))
    index = _read(found.sparkSession, generation, settings, shards, _of_bytes)
    told = _difference(by_bytes, index, generation.index, passed_over)
    if not told.differing:
        return told
    logger.info("%s: %d documents are not the log's bytes", generation.index, told.differing)
    of_meaning = partial(digest, names=[field.name for field in generation.fields])
    by_meaning = found.select("id", "body").mapInArrow(_task(of_meaning), DIGESTS_DDL)
    index = _read(found.sparkSession, generation, settings, shards, of_meaning)
    return _difference(by_meaning, index, generation.index, passed_over)


def _difference(
    log: DataFrame, index: DataFrame, name: str, passed_over: Sequence[str]
) -> Difference:
    """Of two sides with `id` and `digest`."""
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
    with named_failure(name):
        [row] = said.collect()
    return Difference(
        row["documents"],
        row["rows"],
        row["only_in_index"],
        row["only_in_log"],
        row["differing"],
        tuple(row["ids"]),
    )


def digest(document: str, names: Sequence[str]) -> str:
    """Of what a document says in these fields."""
    said = json.loads(document, parse_int=_digits, parse_float=_digits)
    shown = {name: said[name] for name in (*names, RESCUED) if said.get(name) is not None}
    return _of_bytes(json.dumps(shown, sort_keys=True))


def _of_bytes(document: str) -> str:
    return hashlib.sha256(document.encode()).hexdigest()


def _digits(text: str) -> str:
    return f"\0{text}"  # no text of Postgres holds this character, so no string looks like it


def _task(
    digest_of: Callable[[str], str],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            said = pa.array(map(digest_of, each.column("body").to_pylist()))
            yield pa.RecordBatch.from_arrays([each.column("id"), said], schema=DIGESTS)

    return run


def _read(
    spark: SparkSession,
    generation: Generation,
    settings: SearchSettings,
    shards: int,
    digest_of: Callable[[str], str],
) -> DataFrame:
    """Ids and digests of what searches see."""
    index = generation.index

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cluster = Cluster(settings)
        for each in batches:
            for number in each.column("id").to_pylist():
                for page in cluster.pages(index, _shard(number, shards)):
                    ids = pa.array([hit.id for hit in page])
                    said = pa.array([digest_of(hit.source) for hit in page])
                    yield pa.RecordBatch.from_arrays([ids, said], schema=DIGESTS)
        cluster.close()

    return spark.range(0, shards, 1, shards).mapInArrow(run, DIGESTS_DDL)


def _shard(number: int, shards: int) -> dict[str, Any]:
    body: dict[str, Any] = {"size": PAGE, "sort": ["_doc"]}
    return body if shards == 1 else {**body, "slice": {"id": number, "max": shards}}
