"""
Compares an index with the fold of the log, document by document, value by value.

Spark's tasks read both sides and reduce each document to its id and a digest of its bytes: both
writers write the same bytes, and the engine returns them unchanged. Only if bytes differ, the
contents are compared: members in order of their names, numbers with the digits they were written
with; a member that is null equals a missing one.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.schema.changes import Op
from pgstream_dagster.search.build import named_failure
from pgstream_dagster.search.cluster import PAGE, Cluster, SearchSettings
from pgstream_dagster.search.control import Generation
from pgstream_dagster.search.fields import RESCUED
from pgstream_dagster.search.ids_spark import document_id

logger = logging.getLogger(__name__)

SAMPLE: Final = 10
DIGESTS_DDL: Final = "id STRING, digest STRING"
DIGESTS: Final = pa.schema([("id", pa.string()), ("digest", pa.string())])


Touched: TypeAlias = Callable[[DataFrame], DataFrame]
"""From the fold's documents to the ids (column `id`) that later changes may have touched."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How an index differs from the fold: the numbers of documents, and the ids of a few."""

    documents: int  # in the index, among those compared
    rows: int  # in the fold
    only_in_index: int
    only_in_log: int
    differing: int
    sample: tuple[str, ...]

    @property
    def differences(self) -> int:
        """Documents that only one side has, or whose contents differ."""
        return self.only_in_index + self.only_in_log + self.differing

    @property
    def identical(self) -> bool:
        """Nothing differs."""
        return self.differences == 0


def compare(
    rendered: DataFrame,
    generation: Generation,
    settings: SearchSettings,
    *,
    shards: int,
    skipped: Sequence[str],
    touched: Touched | None,
) -> Difference:
    """
    Compare the documents that searches see with those of the fold; runs a Spark job.

    A live index has changes that the fold does not have. With `touched`, the index is read first,
    then `touched` gives the documents that may have changed; all others are as they were.

    Shape:
        rendered: the documents of the fold, as `build.documents` gives them.
        shards: of the index; a task reads each. A slice of a shard costs more than the shard, as
            the engine hashes the ids of all of it.
        skipped: ids that are not compared: dead letters.
        touched: see `Touched`; these are not compared either.

    Raises:
        BuildFailed: a task failed; with its reason.
    """

    def compared(log: DataFrame, digest_of: Callable[[str], str]) -> Difference:
        index = _read(rendered.sparkSession, generation, settings, shards, digest_of)
        with named_failure(generation.index), _read_now(index, touched):
            joined = _joined(log, index).where(~F.col("id").isin(list(skipped)))
            if touched is not None:
                joined = joined.join(touched(rendered), "id", "left_anti")
            return _difference(joined)

    of_bytes = compared(rendered.select("id", F.sha2("body", 256).alias("digest")), _digest)
    if not of_bytes.differing:
        return of_bytes
    logger.info("%s: %d documents are not the log's bytes", generation.index, of_bytes.differing)
    by_value = partial(digest, names=[field.name for field in generation.fields])
    log = rendered.select("id", "body").mapInArrow(_task(by_value), DIGESTS_DDL)
    return compared(log, by_value)


def ids_of(changes: DataFrame, rendered: DataFrame, generation: Generation) -> DataFrame:
    """
    The ids of documents that changes of the generation's relation may have touched.

    Shape:
        changes: from `replay`, of this relation.
        rendered: the documents of the fold before them; a TRUNCATE touches all of these.
        result: id, repeated.
    """
    columns = generation.id_columns
    sides = ("key", "old_key") if columns is None else ("before", "after")
    keys = F.array_compact(F.array(*(_key(F.col(side), columns) for side in sides)))
    ids = changes.select(F.explode(keys).alias("key")).select(document_id(F.col("key")).alias("id"))
    is_emptied = not changes.where(F.col("op") == Op.TRUNCATE.value).isEmpty()
    return ids.union(rendered.select("id")) if is_emptied else ids


def _key(side: Column, columns: Sequence[str] | None) -> Column:
    if columns is None:
        return side
    return F.when(side.isNotNull(), F.array(*(F.element_at(side, F.lit(c)) for c in columns)))


@contextmanager
def _read_now(index: DataFrame, touched: Touched | None) -> Generator[None]:
    """With `touched`, read the index now, and keep it on Spark's disks inside the block."""
    if touched is None:
        yield
        return
    index.persist(StorageLevel.DISK_ONLY)
    try:
        index.count()
        yield
    finally:
        index.unpersist()


def _joined(log: DataFrame, index: DataFrame) -> DataFrame:
    """Both sides have `id` and `digest`."""
    return log.withColumnRenamed("digest", "in_log").join(
        index.withColumnRenamed("digest", "in_index"), "id", "full_outer"
    )


def _difference(joined: DataFrame) -> Difference:
    """The difference of the joined sides; a Spark job."""
    log_only, index_only = F.col("in_index").isNull(), F.col("in_log").isNull()
    differs = log_only | index_only | (F.col("in_log") != F.col("in_index"))
    counts = joined.select(
        F.count("in_index").alias("documents"),
        F.count("in_log").alias("rows"),
        F.count_if(index_only).alias("only_in_index"),
        F.count_if(log_only).alias("only_in_log"),
        F.count_if(F.col("in_log") != F.col("in_index")).alias("differing"),
        F.slice(F.sort_array(F.collect_set(F.when(differs, F.col("id")))), 1, SAMPLE).alias(
            "sample"
        ),
    )
    [(documents, rows, only_in_index, only_in_log, differing, sample)] = counts.collect()
    return Difference(documents, rows, only_in_index, only_in_log, differing, tuple(sample))


def digest(document: str, names: Sequence[str]) -> str:
    """The digest of a document's values in these fields."""
    values = json.loads(document, parse_int=_digits, parse_float=_digits)
    shown = {name: values[name] for name in (*names, RESCUED) if values.get(name) is not None}
    return _digest(json.dumps(shown, sort_keys=True))


def _digest(document: str) -> str:
    return hashlib.sha256(document.encode()).hexdigest()


def _digits(text: str) -> str:
    return f"\0{text}"  # no Postgres text contains this character, so no string equals it


def _task(
    digest_of: Callable[[str], str],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            digests = pa.array(map(digest_of, batch.column("body").to_pylist()))
            yield pa.RecordBatch.from_arrays([batch.column("id"), digests], schema=DIGESTS)

    return run


def _read(
    spark: SparkSession,
    generation: Generation,
    settings: SearchSettings,
    shards: int,
    digest_of: Callable[[str], str],
) -> DataFrame:
    """Ids and digests of the documents that searches see."""
    index = generation.index

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cluster = Cluster(settings)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for page in cluster.pages(index, _shard(number, shards)):
                    ids = pa.array([hit.id for hit in page])
                    digests = pa.array([digest_of(hit.source) for hit in page])
                    yield pa.RecordBatch.from_arrays([ids, digests], schema=DIGESTS)
        cluster.close()

    return spark.range(0, shards, 1, shards).mapInArrow(run, DIGESTS_DDL)


def _shard(number: int, shards: int) -> dict[str, Any]:
    body: dict[str, Any] = {"size": PAGE, "sort": ["_doc"]}
    return body if shards == 1 else {**body, "slice": {"id": number, "max": shards}}
