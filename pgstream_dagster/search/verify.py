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
"""The ids (column `id`) that changes since the fold may have touched, of the fold's documents."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How an index differs from the fold: how many documents, and the ids of a few."""

    documents: int  # in the index, of those compared
    rows: int  # of the fold
    only_in_index: int
    only_in_log: int
    differing: int
    sample: tuple[str, ...]

    @property
    def differences(self) -> int:
        """Documents that only one side has, or that say something else."""
        return self.only_in_index + self.only_in_log + self.differing

    @property
    def identical(self) -> bool:
        """Nothing differs."""
        return self.differences == 0


def compare(
    found: DataFrame,
    generation: Generation,
    settings: SearchSettings,
    *,
    shards: int,
    passed_over: Sequence[str] = (),
    touched: Touched | None = None,
) -> Difference:
    """
    Compare the documents that searches see with those of the fold; runs a Spark job.

    An index that goes on has changes that the fold has not. With `touched` it is read first, and
    asked then what they may have changed: all else is as it was.

    Shape:
        found: the documents of the fold, as `build.documents` gives them.
        shards: of the index; each is read by a task. A slice of a shard costs more than the shard,
            as the engine hashes the ids of all of it.
        passed_over: ids that are not compared: dead letters.
        touched: see `Touched`; these are not compared either.

    Raises:
        BuildFailed: what ended a task, as its reason.
    """

    def told(log: DataFrame, digest_of: Callable[[str], str]) -> Difference:
        index = _read(found.sparkSession, generation, settings, shards, digest_of)
        with named_failure(generation.index), _read_now(index, touched):
            compared = _joined(log, index).where(~F.col("id").isin(list(passed_over)))
            if touched is not None:
                compared = compared.join(touched(found), "id", "left_anti")
            return _difference(compared)

    of_bytes = told(found.select("id", F.sha2("body", 256).alias("digest")), _of_bytes)
    if not of_bytes.differing:
        return of_bytes
    logger.info("%s: %d documents are not the log's bytes", generation.index, of_bytes.differing)
    of_meaning = partial(digest, names=[field.name for field in generation.fields])
    return told(found.select("id", "body").mapInArrow(_task(of_meaning), DIGESTS_DDL), of_meaning)


def ids_of(changes: DataFrame, found: DataFrame, generation: Generation) -> DataFrame:
    """
    The ids of documents that changes of the generation's relation may have touched.

    Shape:
        changes: of `replay`, of this relation.
        found: the documents of the fold in front of them; a TRUNCATE touches all of these.
        result: id; with repetitions.
    """
    columns = generation.id_columns
    sides = ("key", "old_key") if columns is None else ("before", "after")
    keys = F.array_compact(F.array(*(_key(F.col(side), columns) for side in sides)))
    ids = changes.select(F.explode(keys).alias("key")).select(document_id(F.col("key")).alias("id"))
    is_emptied = not changes.where(F.col("op") == Op.TRUNCATE.value).isEmpty()
    return ids.union(found.select("id")) if is_emptied else ids


def _key(side: Column, columns: Sequence[str] | None) -> Column:
    if columns is None:
        return side
    return F.when(side.isNotNull(), F.array(*(F.element_at(side, F.lit(c)) for c in columns)))


@contextmanager
def _read_now(index: DataFrame, touched: Touched | None) -> Generator[None]:
    """With `touched`, what is read of the index is kept on Spark's disks while inside."""
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
    """Of two sides, joined; a Spark job."""
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
