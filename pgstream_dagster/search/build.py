"""
Filling a new generation: the fold of the log's beginning, posted from Spark's tasks.

Bodies are put together in the JVM; a task's Python only cuts Arrow's own buffer into requests and
reads the verdicts. Written with their versions, so a task that Spark repeats changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.delta.task_errors import last_line
from pgstream_dagster.errors import BuildFailed, IndexRefuses
from pgstream_dagster.failpoints import reach
from pgstream_dagster.search import ids_spark, render_spark
from pgstream_dagster.search.bulk import REQUEST_BYTES, REQUEST_ITEMS, Refusal, settle
from pgstream_dagster.search.cluster import Cluster, SearchSettings
from pgstream_dagster.search.control import Generation

RESULT: Final = pa.schema(
    [
        ("documents", pa.int64()),
        ("id", pa.string()),
        ("key", pa.list_(pa.string())),
        ("version", pa.int64()),
        ("type", pa.string()),
        ("reason", pa.string()),
        ("line", pa.string()),
    ]
)
"""What a task says: a row with its number of documents, and one per document refused."""

RESULT_DDL: Final = (
    "documents BIGINT, id STRING, key ARRAY<STRING>, version BIGINT, type STRING, reason STRING,"
    " line STRING"
)

OURS: Final = "pgstream_dagster.errors."

REFUSED_AT_MOST: Final = 1_000
"""Dead letters of one build; with more of them the mapping is wrong, not the documents."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was sent, and which documents were refused for good."""

    documents: int
    refused: tuple[dict[str, Any], ...]


def documents(rows: DataFrame, generation: Generation) -> DataFrame:
    """
    The documents of folded rows.

    Shape:
        rows: as `changelog.fold` gives them.
        result: id, key, version, body; one row per document.
    """
    ids = key(generation)
    said = rows.select(
        ids_spark.document_id(ids).alias("id"),
        ids.alias("key"),
        F.col("commit_lsn").alias("version"),
        "row",
    )
    found = render_spark.with_body(said, generation.fields)
    return found if generation.id_columns is None else found.dropDuplicates(["id"])


def key(generation: Generation) -> Column:
    """Of folded rows, the values that make the id; needs a SparkSession."""
    if generation.id_columns is None:
        return F.col("key")
    return F.array(*(F.element_at(F.col("row"), F.lit(name)) for name in generation.id_columns))


def load(found: DataFrame, generation: Generation, settings: SearchSettings) -> Loaded:
    """
    Write every document into the generation's index; runs a Spark job.

    Raises:
        IndexRefuses: more than a few were refused.
        BuildFailed: what ended a task, as its reason.
    """
    action = F.struct(
        F.col("id").alias("_id"),
        F.col("version").alias("version"),
        F.lit("external_gte").alias("version_type"),
    )
    head = F.to_json(F.struct(action.alias("index")))
    line = F.concat(head, F.lit("\n"), F.col("body"), F.lit("\n"))
    lines = found.select("id", "key", "version", line.alias("line"))
    task = _task(settings, generation.writer)
    with named_failure(generation.index):
        results = lines.mapInArrow(task, RESULT_DDL).toArrow().to_pylist()
    counted = [row for row in results if row["documents"] is not None]
    refused = [row for row in results if row["documents"] is None]
    total = sum(row["documents"] for row in counted)
    if len(refused) > REFUSED_AT_MOST or (refused and len(refused) == total):
        first = refused[0]
        raise IndexRefuses(generation.index, len(refused), first["type"], first["reason"])
    return Loaded(total, tuple(refused))


@contextmanager
def named_failure(index: str) -> Generator[None]:
    """What ended a Spark job of an index, as `BuildFailed`, with the task's own reason."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        said = last_line(error, OURS).removeprefix(OURS)
        raise BuildFailed(index, said) from error


def _task(
    settings: SearchSettings, alias: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cluster = Cluster(settings)
        documents = 0
        for found in batches:
            for piece in _pieces(found):
                refused = settle(cluster, alias, _lines(piece), is_patient=True)
                reach("build.task")
                documents += piece.num_rows
                if refused:
                    rows = [_refused(piece, at, refusal) for at, refusal in refused.items()]
                    yield pa.RecordBatch.from_pylist(rows, RESULT)
        cluster.close()
        yield pa.RecordBatch.from_pylist([{"documents": documents}], RESULT)

    return run


def _pieces(found: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts that make a request each."""
    start = 0
    ends = _offsets(found.column("line"))
    while start < found.num_rows:
        full = int(np.searchsorted(ends, ends[start] + REQUEST_BYTES, side="right")) - 1
        end = min(max(full, start + 1), start + REQUEST_ITEMS, found.num_rows)
        yield found.slice(start, end - start)
        start = end


def _offsets(lines: pa.StringArray) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Where in Arrow's buffer each line begins, and the last one ends."""
    everything = np.frombuffer(lines.buffers()[1], dtype=np.int32)
    return everything[lines.offset : lines.offset + len(lines) + 1]


def _lines(piece: pa.RecordBatch) -> list[memoryview]:
    """Each document's lines, where they are in Arrow's buffer."""
    places = _offsets(piece.column("line")).tolist()
    text = memoryview(piece.column("line").buffers()[2])
    return [text[start:end] for start, end in pairwise(places)]


def _refused(piece: pa.RecordBatch, at: int, refusal: Refusal) -> dict[str, Any]:
    row = piece.slice(at, 1).to_pylist()[0]
    return {**row, "type": refusal.type, "reason": refusal.reason}
