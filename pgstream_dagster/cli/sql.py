"""`pgstream sql`: a query of the lake, printed for people or for programs."""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import click
from rich.cells import cell_len, set_cell_size

from pgstream_dagster.cli.commands import command, run_with_progress

if TYPE_CHECKING:
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.query.query import Result

SHOWN_ROWS: Final = 100
"""Of a result that is shown to people; --limit changes it."""

SHOWN_CELLS: Final = 48
"""Of one value that is shown to people; --json and --csv have all of it."""

NULL: Final = "NULL"

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]")
_CSV_QUOTED: Final = re.compile(r'[",\r\n]|^$|^\s|\s$')


@command(
    'pgstream sql "select status, count(*) from public.orders group by 1"',
    "pgstream sql --csv - < query.sql",
    "pgstream sql",
    name="sql",
)
@click.argument("query", required=False)
@click.option("--json", "json", is_flag=True, help="Print an array of JSON objects, all rows.")
@click.option("--csv", "csv", is_flag=True, help="Print CSV with a header, all rows.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=SHOWN_ROWS,
    show_default=True,
    help="Rows to show, without --json and --csv.",
)
def sql(pipeline: Pipeline, query: str | None, *, json: bool, csv: bool, limit: int) -> None:
    """
    Query typed tables and the change log with a SELECT.

    The SQL is that of DuckDB, which runs in this process. Tables have their names of the source;
    change_log_<table> has the changes of a table, a column per column. `-` reads the query from
    stdin. Without a query it lists the tables. Changes nothing, and reads nothing but the lake.
    Needs: pip install 'pgstream-dagster[sql]'.
    """
    from pgstream_dagster.query import query as queries
    from pgstream_dagster.query import rendering

    if json and csv:
        raise click.UsageError("--json and --csv exclude each other")
    if query is None:
        names = run_with_progress(lambda: queries.readable_names(pipeline))
        click.echo("\n".join(names))
        return
    text = sys.stdin.read() if query == "-" else query
    as_text = rendering.json if json else rendering.text
    lines = as_json if json else as_csv if csv else partial(table, limit=limit)

    def run() -> None:
        with queries.query(pipeline, text, as_text) as result:
            for line in lines(result):
                click.echo(line)

    run_with_progress(run)


def as_json(result: Result) -> Iterator[str]:
    """
    The lines of an array of objects, a line per row.

    Shape:
        result: the values are JSON already.
    """
    names = [json_module.dumps(name, ensure_ascii=False) for name in result.columns]
    separator = "["
    for row in result.rows:
        values = ("null" if value is None else value for value in row)
        members = (f"{name}: {value}" for name, value in zip(names, values, strict=True))
        yield f"{separator}{{{', '.join(members)}}}"
        separator = ","
    yield "[]" if separator == "[" else "]"


def as_csv(result: Result) -> Iterator[str]:
    """The lines of a CSV as Postgres writes it: null is nothing, an empty text is in quotes."""
    for row in chain([result.columns], result.rows):
        yield ",".join(map(_csv_value, row))


def _csv_value(value: str | None) -> str:
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if _CSV_QUOTED.search(value) else value


def table(result: Result, limit: int) -> Iterator[str]:
    """The lines of a table for people: the first rows, long values cut, and the number of rows."""
    rows = [[_shown(value) for value in row] for row in islice(result.rows, limit)]
    rest = sum(1 for _ in result.rows)
    header = [_shown(name) for name in result.columns]
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    yield _line(header, widths)
    yield "-+-".join("-" * width for width in widths)
    yield from (_line(row, widths) for row in rows)
    yield _count(len(rows), rest)


def _shown(value: str | None) -> str:
    if value is None:
        return NULL
    printable = _UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], value)
    if cell_len(printable) <= SHOWN_CELLS:
        return printable
    return set_cell_size(printable, SHOWN_CELLS - 1) + "…"


def _line(values: Sequence[str], widths: Sequence[int]) -> str:
    cells = (set_cell_size(value, width) for value, width in zip(values, widths, strict=True))
    return " | ".join(cells).rstrip()


def _count(shown: int, rest: int) -> str:
    if rest:
        return f"({shown:,} of {shown + rest:,} rows)"
    return f"({shown:,} row{'' if shown == 1 else 's'})"
