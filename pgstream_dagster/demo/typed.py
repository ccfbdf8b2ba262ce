"""The demo's typed tables: they follow rows and columns of the source, and answer SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from pgstream_dagster.demo.printing import Echo, Step
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.query import rendering
from pgstream_dagster.query.query import query
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.upkeep.reconcile_tables import TypedReconciliation, reconcile_tables

QUESTIONS: Final = {
    "planes that are retired, of the column that was added": (
        "select manufacturer, count(*) as planes from planes where retired"
        " group by 1 order by 2 desc, 1 limit 3"
    ),
    "the airports whose column was renamed": (
        "select faa, altitude_feet from airports where altitude_feet > 7000 order by 2 desc limit 3"
    ),
    "what ended the former versions of planes, by their history": (
        "select _ended_by, count(*) as versions from planes__history where not _is_current"
        " group by 1 order by 2 desc"
    ),
}


def merge(pipeline: Pipeline, echo: Echo) -> None:
    """Bring every typed table and history to the log's position."""
    merge_tables(pipeline, report=lambda table: echo(f"  {table.line}"))


def follow(pipeline: Pipeline, echo: Echo) -> Sequence[TypedReconciliation]:
    """Merge what has changed since, compare the tables and query them; a stream has to run."""
    echo(Step.COMPARE_TABLES)
    tables = reconcile_tables(pipeline, on_table=lambda table: echo(f"  {_line(table)}")).tables
    echo(Step.QUERY)
    for line in _answers(pipeline):
        echo(f"  {line}")
    return tables


def _line(table: TypedReconciliation) -> str:
    return table.reason or f"{table.name}: {table.source.source_rows if table.source else 0:,} rows"


def _answers(pipeline: Pipeline) -> Iterator[str]:
    """What `pgstream sql` answers to the questions."""
    for question, text in QUESTIONS.items():
        with query(pipeline, text, rendering.text) as result:
            rows = [", ".join(value or "" for value in row) for row in islice(result.rows, 5)]
        yield f"{question}: {'; '.join(rows)}"
