"""The commands of typed tables."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import click

from pgstream_dagster.cli import render
from pgstream_dagster.cli.commands import (
    as_json,
    command,
    example,
    pgstream,
    run_with_progress,
)

ROWS_PRINTED: Final = 1_000
"""More do not help a person; a program asks for all of them."""

if TYPE_CHECKING:
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.tables.merge import Merged, MergedTable


@pgstream.group("tables")
@example("pgstream tables merge")
def tables_group() -> None:
    """Keep the current rows as typed Delta tables."""


@command(
    "pgstream tables merge",
    "pgstream tables merge --rebuild public.orders",
    group=tables_group,
    name="merge",
)
@click.option(
    "--rebuild",
    multiple=True,
    metavar="TABLE",
    help="Write the typed table of this table again, from the log; may be repeated.",
)
@as_json
def tables_merge(pipeline: Pipeline, *, rebuild: tuple[str, ...], json: bool) -> None:
    """
    Bring every typed table to the position of the log, once.

    Prints the tables that changed, with their rows, the changes of the log and the seconds. After
    an interruption, run it again to continue.
    """
    from pgstream_dagster.tables.merge import merge_tables

    done = run_with_progress(lambda: merge_tables(pipeline, rebuild=rebuild))
    click.echo(render.as_json(done) if json else merged_text(done))


@command("pgstream tables run", "pgstream tables run --json", group=tables_group, name="run")
@as_json
def tables_run(pipeline: Pipeline, *, json: bool) -> None:
    """
    Merge every tables.merge_seconds until Ctrl-C or SIGTERM.

    Run it in a process of its own, next to `pgstream stream`. Prints each pass that changed a
    table; with --json, as one line of JSON. It waits while the lake is unavailable.
    """
    from pgstream_dagster.tables.run import run_tables

    stop = threading.Event()

    def report(done: Merged) -> None:
        if done.tables:
            click.echo(render.as_json_line(done) if json else merged_text(done))

    run_with_progress(lambda: run_tables(pipeline, stop=stop, report=report), stop=stop)


@command(
    "pgstream tables as-of public.orders 16/B374D848",
    "pgstream tables as-of public.orders 2026-01-31T12:00:00Z --csv",
    group=tables_group,
    name="as-of",
)
@click.argument("table")
@click.argument("moment")
@click.option("--csv", is_flag=True, help="Print CSV with a line of names.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=ROWS_PRINTED,
    show_default=True,
    help="Print so many rows at most; 0: all.",
)
@as_json
def tables_as_of(
    pipeline: Pipeline, table: str, moment: str, *, csv: bool, limit: int, json: bool
) -> None:
    """
    Print the rows of a table as they were.

    MOMENT is a position such as 16/B374D848, and what was committed before it is shown, or a time
    with its zone. Every captured table has a past; one with a history is read faster.
    """
    from pgstream_dagster.tables.history.as_of import moment as parsed
    from pgstream_dagster.tables.history.as_of import read_as_of
    from pgstream_dagster.tables.history.printed import printed

    if csv and json:
        raise click.UsageError("--csv and --json: give one of them")
    at = parsed(moment)
    rows = run_with_progress(lambda: read_as_of(pipeline, table, at))
    shown = run_with_progress(lambda: printed(rows.rows, limit or None))
    if json:
        whole = {"position": rows.position, "is_limited": shown.is_limited, "rows": shown.rows}
        click.echo(render.as_json(whole))
    elif csv:
        click.echo(shown.as_csv(), nl=False)
    else:
        click.echo(render.table(shown.names, shown.as_cells()))
    note = f"; more than --limit {limit}" if shown.is_limited else ""
    click.echo(f"{table} at {rows.position}: {len(shown.rows):,} rows{note}", err=True)


def merged_text(done: Merged) -> str:
    """A pass, for people."""
    lines = [_line(table) for table in done.tables] or ["nothing has changed"]
    return "\n".join([*lines, f"typed tables are at {done.position}"])


def _line(table: MergedTable) -> str:
    changes = f"{table.changes:,} changes, " if table.changes else ""
    return f"{table.name}: {table.step}, {changes}{table.rows:,} rows, {table.seconds:.1f} s"
