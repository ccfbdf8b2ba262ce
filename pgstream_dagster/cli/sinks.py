"""The commands of sinks, and `tail`."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Literal

import click

from pgstream_dagster.cli import render
from pgstream_dagster.cli.commands import (
    as_json,
    command,
    example,
    pgstream,
    run_cancellable,
    run_with_progress,
)
from pgstream_dagster.cli.exits import ExitCode
from pgstream_dagster.cli.launch import Request
from pgstream_dagster.cli.progress import SinkLine

if TYPE_CHECKING:
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.sinks.control import SinkStatus

START = (
    "'start' (the copies), 'now', an LSN, a time such as 2026-03-01T12:00:00+00:00, or the id of an"
    " event of the outbox."
)


@pgstream.group("sink")
@example("pgstream sink run")
def sink_group() -> None:
    """Deliver changes to other systems, from the log."""


@command(
    *("pgstream sink run", "pgstream sink run events", "pgstream sink run --json"),
    group=sink_group,
    name="run",
    requests=lambda _, sinks, json: [Request("sinks")],
)
@click.argument("sinks", nargs=-1, metavar="[SINK...]")
@as_json
def sink_run(pipeline: Pipeline, sinks: tuple[str, ...], *, json: bool) -> None:
    """
    Deliver to all sinks of pgstream.yaml, or to the named ones, until Ctrl-C.

    Each sink continues where it was. A sink whose target is away waits, and holds up no other. With
    --json it prints at its end how far each sink is; not for a sink that writes to stdout.
    """
    from pgstream_dagster.sinks.run import run

    line, stop = SinkLine(), threading.Event()
    done = run_with_progress(
        lambda: run(pipeline, sinks, stop=stop, report=line.put), stop=stop, line=line
    )
    if json:
        click.echo(render.as_json(render.sink_progress(done)))


@command("pgstream sink status", "pgstream sink status --json", group=sink_group, name="status")
@as_json
def sink_status(pipeline: Pipeline, *, json: bool) -> None:
    """Show the sinks: position, lag, delivered changes, dead letters, and what is wrong."""
    from pgstream_dagster.sinks.control import sink_status as operation

    sinks = run_with_progress(lambda: operation(pipeline))
    click.echo(render.as_json(sinks) if json else render.sink_status(sinks))


@command("pgstream sink letters events", group=sink_group, name="letters")
@click.argument("sink")
@as_json
def sink_letters(pipeline: Pipeline, sink: str, *, json: bool) -> None:
    """Show the changes that a target refused, and why; they have values of keys."""
    from pgstream_dagster.sinks.control import sink_letters as operation

    letters = run_with_progress(lambda: operation(pipeline, sink, with_contents=json))
    click.echo(render.sink_letters_as_json(letters) if json else render.sink_letters(letters))


@command("pgstream sink pause events", group=sink_group, name="pause")
@click.argument("sink")
@as_json
def sink_pause(pipeline: Pipeline, sink: str, *, json: bool) -> None:
    """Deliver nothing to a sink until resume; its changes wait in the log."""
    from pgstream_dagster.sinks.control import pause

    readers = run_with_progress(lambda: pause(pipeline, sink))
    text = f"{sink} is paused; continue with 'pgstream sink resume {sink}'"
    click.echo(render.as_json(readers) if json else text)


@command("pgstream sink resume events", group=sink_group, name="resume")
@click.argument("sink")
@as_json
def sink_resume(pipeline: Pipeline, sink: str, *, json: bool) -> None:
    """Deliver to a sink again after pause."""
    from pgstream_dagster.sinks.control import resume

    readers = run_with_progress(lambda: resume(pipeline, sink))
    click.echo(render.as_json(readers) if json else f"{sink} continues")


@command("pgstream sink reset events --from start", group=sink_group, name="reset")
@click.argument("sink")
@click.option("--from", "start", required=True, help=f"Where to begin: {START}")
@as_json
def sink_reset(pipeline: Pipeline, sink: str, start: str, *, json: bool) -> None:
    """
    Let a sink begin again somewhere else.

    What was delivered before comes again, with the same event ids, and dead letters of what comes
    again are closed. Each table whose copy comes again begins with a marker, at which a sink
    `postgres` empties the table that it has written.
    """
    from pgstream_dagster.sinks.control import reset

    readers = run_with_progress(lambda: reset(pipeline, sink, start))
    click.echo(render.as_json(readers) if json else f"{sink} begins again at {start}")


@command("pgstream sink redrive events", group=sink_group, name="redrive")
@click.argument("sink")
@as_json
def sink_redrive(pipeline: Pipeline, sink: str, *, json: bool) -> int:
    """
    Deliver the dead letters of a sink again, in order.

    Exits with 1 if some are refused again.
    """
    from pgstream_dagster.sinks.control import redrive

    return _shown(run_cancellable(lambda stop: redrive(pipeline, sink, stop=stop)), json=json)


@command(
    "pgstream sink replay events --from 2026-03-01T00:00:00+00:00 --tables public.orders",
    group=sink_group,
    name="replay",
)
@click.argument("sink")
@click.option("--from", "start", required=True, help=f"Where to begin: {START}")
@click.option("--until", default="now", help="Where to end: 'now', an LSN, a time or an event.")
@click.option(
    "--tables",
    multiple=True,
    help="Of the sink's tables, those that match this pattern; may be repeated.",
)
@as_json
def sink_replay(
    pipeline: Pipeline, sink: str, start: str, until: str, *, tables: tuple[str, ...], json: bool
) -> int:
    """
    Deliver a part of the log to a sink once more; its position stays.

    Changes have the event ids that they had before. Not for a sink of type postgres, whose rows it
    would set to earlier values: reset it.
    """
    from pgstream_dagster.sinks.control import replay

    readers = run_cancellable(lambda stop: replay(pipeline, sink, start, until, tables, stop=stop))
    return _shown(readers, json=json)


def _shown(readers: list[SinkStatus], *, json: bool) -> int:
    click.echo(render.as_json(readers) if json else render.sink_status(readers))
    return ExitCode.PROBLEM if any(reader.refused for reader in readers) else ExitCode.OK


@command("pgstream tail", "pgstream tail public.orders --from start --format json")
@click.argument("tables", nargs=-1, metavar="[TABLE...]")
@click.option("--from", "start", default="now", show_default=True, help=f"Where to begin: {START}")
@click.option(
    "--format",
    "form",
    type=click.Choice(["pretty", "json", "debezium"]),
    default="pretty",
    show_default=True,
    help="Lines for people, the message that sinks send, or Debezium's.",
)
def tail(
    pipeline: Pipeline,
    tables: tuple[str, ...],
    start: str,
    form: Literal["pretty", "json", "debezium"],
) -> None:
    """Print changes as they arrive in the log, until Ctrl-C."""
    from pgstream_dagster.sinks.tail import tail as operation

    def write(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    stop = threading.Event()
    run_with_progress(
        lambda: operation(pipeline, tables, start=start, form=form, write=write, stop=stop),
        stop=stop,
    )
