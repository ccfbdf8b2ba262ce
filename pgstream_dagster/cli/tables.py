"""The commands of typed tables."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from pgstream_dagster.cli import render
from pgstream_dagster.cli.commands import (
    as_json,
    command,
    example,
    pgstream,
    run_with_progress,
)

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


def merged_text(done: Merged) -> str:
    """A pass, for people."""
    lines = [_line(table) for table in done.tables] or ["nothing has changed"]
    return "\n".join([*lines, f"typed tables are at {done.position}"])


def _line(table: MergedTable) -> str:
    changes = f"{table.changes:,} changes, " if table.changes else ""
    return f"{table.name}: {table.step}, {changes}{table.rows:,} rows, {table.seconds:.1f} s"
