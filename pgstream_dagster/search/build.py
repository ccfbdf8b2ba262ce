"""
Fills a new generation: the fold of the log's beginning, posted from Spark's tasks.

The JVM puts the bodies together; a task's Python only cuts Arrow's own buffer into requests and
reads the verdicts. Documents are written with their versions, so a task that Spark repeats changes
nothing.
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

from pgstream_dagster.changelog.dead_letters import DeadLetter
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
"""What a task returns: a row with its number of documents, and one per refused document."""

RESULT_DDL: Final = (
    "documents BIGINT, id STRING, key ARRAY<STRING>, version BIGINT, type STRING, reason STRING,"
    " line STRING"
)

OURS: Final = "pgstream_dagster.errors."

REFUSED_AT_MOST: Final = 1_000
"""Dead letters of one build; with more of them the mapping is wrong, not the documents."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """How many documents were sent, and the dead letters of those that were refused."""

    documents: int
    letters: tuple[DeadLetter, ...]


def documents(rows: DataFrame, generation: Generation) -> DataFrame:
    """
    The documents of folded rows.

    Shape:
        rows: as `changelog.fold` gives them.
        result: id, key, version, body; one row per document.
    """
    values = key(generation)
    identified = rows.select(
        ids_spark.document_id(values).alias("id"),
        values.alias("key"),
        F.col("commit_lsn").alias("version"),
        "row",
    )
    rendered = render_spark.with_body(identified, generation.fields)
    return rendered if generation.id_columns is None else rendered.dropDuplicates(["id"])


def key(generation: Generation) -> Column:
    """The values of a folded row that make the id; needs a SparkSession."""
    if generation.id_columns is None:
        return F.col("key")
    return F.array(*(F.element_at(F.col("row"), F.lit(name)) for name in generation.id_columns))


def load(rendered: DataFrame, generation: Generation, settings: SearchSettings) -> Loaded:
    """
    Write every document into the generation's index; runs a Spark job.

    Shape:
        rendered: as `documents` gives them.

    Raises:
        IndexRefuses: more than a few documents were refused.
        BuildFailed: a task failed; with its reason.
    """
    action = F.struct(
        F.col("id").alias("_id"),
        F.col("version").alias("version"),
        F.lit("external_gte").alias("version_type"),
    )
    head = F.to_json(F.struct(action.alias("index")))
    line = F.concat(head, F.lit("\n"), F.col("body"), F.lit("\n"))
    lines = rendered.select("id", "key", "version", line.alias("line"))
    task = _task(settings, generation.writer)
    with named_failure(generation.index):
        results = lines.mapInArrow(task, RESULT_DDL).toArrow().to_pylist()
    total = sum(row["documents"] for row in results if row["documents"] is not None)
    refused = [row for row in results if row["documents"] is None]
    if len(refused) > REFUSED_AT_MOST or (refused and len(refused) == total):
        first = refused[0]
        raise IndexRefuses(generation.index, len(refused), first["type"], first["reason"])
    return Loaded(total, tuple(_letter(generation, row) for row in refused))


def _letter(generation: Generation, row: dict[str, Any]) -> DeadLetter:
    body = row["line"].partition("\n")[2].rstrip("\n")
    refusal = Refusal(row["type"], row["reason"])
    return refusal.letter(generation, row["id"], tuple(row["key"]), row["version"], body)


@contextmanager
def named_failure(index: str) -> Generator[None]:
    """Raise `BuildFailed` for an error of an index's Spark job, with the task's own reason."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise BuildFailed(index, last_line(error, OURS).removeprefix(OURS)) from error


def _task(
    settings: SearchSettings, alias: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cluster = Cluster(settings)
        documents = 0
        for batch in batches:
            for request in _requests(batch):
                refused = settle(cluster, alias, _lines(request), is_patient=True)
                reach("build.task")
                documents += request.num_rows
                if refused:
                    rows = [_refused(request, at, refusal) for at, refusal in refused.items()]
                    yield pa.RecordBatch.from_pylist(rows, RESULT)
        cluster.close()
        yield pa.RecordBatch.from_pylist([{"documents": documents}], RESULT)

    return run


def _requests(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch that make one request each."""
    start = 0
    ends = _offsets(batch.column("line"))
    while start < batch.num_rows:
        full = int(np.searchsorted(ends, ends[start] + REQUEST_BYTES, side="right")) - 1
        end = min(max(full, start + 1), start + REQUEST_ITEMS, batch.num_rows)
        yield batch.slice(start, end - start)
        start = end


def _offsets(lines: pa.StringArray) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Where each line begins in Arrow's buffer, and where the last one ends."""
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32)
    return offsets[lines.offset : lines.offset + len(lines) + 1]


def _lines(request: pa.RecordBatch) -> list[memoryview]:
    """Each document's lines, in Arrow's buffer, not copied."""
    offsets = _offsets(request.column("line")).tolist()
    text = memoryview(request.column("line").buffers()[2])
    return [text[start:end] for start, end in pairwise(offsets)]


def _refused(request: pa.RecordBatch, at: int, refusal: Refusal) -> dict[str, Any]:
    row = request.slice(at, 1).to_pylist()[0]
    return {**row, "type": refusal.type, "reason": refusal.reason}
