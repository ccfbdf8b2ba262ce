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
from pgstream_dagster.cli.launch import Request, op_request

ROWS_PRINTED: Final = 1_000
"""More do not help a person; a program asks for all of them."""

if TYPE_CHECKING:
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.tables.passes import Merged
    from pgstream_dagster.tables.status import TypedStatus


@pgstream.group("tables")
@example("pgstream tables merge")
def tables_group() -> None:
    """Keep the current rows as typed Delta tables."""


def merge_request(_: Pipeline, *, rebuild: tuple[str, ...], json: bool) -> list[Request]:
    """A run of the job that rebuilds, or of the one that only merges."""
    del json
    if rebuild:
        return [op_request("rebuild_tables", "write_tables_again", tables=list(rebuild))]
    return [Request("merge_tables")]


@command(
    "pgstream tables merge",
    "pgstream tables merge --rebuild public.orders",
    group=tables_group,
    name="merge",
    requests=merge_request,
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
    done.require_all()


@command(
    *("pgstream tables pending", "pgstream tables pending --json"),
    group=tables_group,
    name="pending",
)
@as_json
def tables_pending(pipeline: Pipeline, *, json: bool) -> None:
    """
    Show the changes of columns that wait for an approval, table by table.

    They wait where the pipeline file says `on_schema_change: hold`. Prints what the last merge saw.
    """
    from pgstream_dagster.tables.approval import held_tables

    held = run_with_progress(lambda: held_tables(pipeline))
    text = "\n".join(map(render.held_table, held)) or "no change of columns waits"
    click.echo(render.as_json(held) if json else text)


@command(
    "pgstream tables approve public.orders",
    "pgstream tables approve public.orders --versions 5f0c1e9a72d4",
    "pgstream tables approve --all",
    group=tables_group,
    name="approve",
)
@click.argument("tables", nargs=-1, metavar="[TABLE...]")
@click.option("--all", "every", is_flag=True, help="Approve all changes that wait.")
@click.option(
    "--versions",
    metavar="VERSIONS",
    help="Approve only if these are what waits, as `pgstream tables pending` prints them.",
)
@as_json
def tables_approve(
    pipeline: Pipeline, tables: tuple[str, ...], *, every: bool, versions: str | None, json: bool
) -> None:
    """
    Let the next merge apply the changes of columns that wait for tables.

    Prints what it approves. A change that comes later waits again, with all of them.
    """
    from pgstream_dagster.tables.approval import approve_tables

    if every == bool(tables):
        raise click.UsageError("name the tables, or use --all")
    if versions is not None and len(tables) != 1:
        raise click.UsageError("--versions is of one table")
    done = run_with_progress(lambda: approve_tables(pipeline, tables, versions=versions))
    text = "\n".join(map(render.held_table, done)) or "no change of columns waits"
    click.echo(render.as_json(done) if json else text)


@command("pgstream tables run", "pgstream tables run --json", group=tables_group, name="run")
@as_json
def tables_run(pipeline: Pipeline, *, json: bool) -> None:
    """
    Merge every tables.merge_seconds until Ctrl-C or SIGTERM.

    Run it in a process of its own, next to `pgstream stream`. Prints each pass that changed a
    table or holds another one; with --json, as one line of JSON. It waits while the lake is
    unavailable.
    """
    from pgstream_dagster.tables.approval import HeldTable
    from pgstream_dagster.tables.run import run_tables

    stop, held = threading.Event(), list[HeldTable]()

    def report(done: Merged) -> None:
        nonlocal held
        has_news, held = bool(done.tables) or list(done.held) != held, list(done.held)
        if has_news:
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


@command("pgstream tables list", "pgstream tables list --json", group=tables_group, name="list")
@as_json
def tables_list(pipeline: Pipeline, *, json: bool) -> None:
    """
    Show every typed table: its table, state, rows, position, columns and folder.

    Reads what the last merge has recorded, and changes nothing. With --json also the columns.
    """
    from pgstream_dagster.tables.status import typed_status

    status = run_with_progress(lambda: typed_status(pipeline))
    click.echo(render.as_json(status) if json else listed_text(status))


def listed_text(status: TypedStatus) -> str:
    """The typed tables, for people."""
    heads = ["table", "state", "rows", "position", "changed at", "seconds", "columns", "folder"]
    rows = [
        (
            *(table.table, table.state.value, table.rows, table.position, table.changed_at),
            *(table.seconds, len(table.columns), table.uri),
        )
        for table in status.tables
    ]
    if status.position is None:
        return f"{render.table(heads, rows)}\nnothing is merged yet; next: pgstream tables merge"
    seconds = status.lag_seconds
    since = "" if not seconds else f", since {render.duration(seconds)}"
    lag = f"{render.size(status.lag_bytes)} of WAL behind the log{since}"
    return f"{render.table(heads, rows)}\ntyped tables are at {status.position}, {lag}"


def merged_text(done: Merged) -> str:
    """A pass, for people."""
    lines = [table.line for table in done.tables] or ["nothing has changed"]
    held = [f"held: {render.held_table(table)}" for table in done.held]
    return "\n".join([*lines, *held, f"typed tables are at {done.position}"])
