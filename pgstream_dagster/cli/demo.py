"""The commands that need no server and no settings."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import click

from pgstream_dagster.cli.commands import example, pgstream, run_with_progress
from pgstream_dagster.cli.exits import ExitCode


@pgstream.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".demo"),
    show_default=True,
    help="Where the demo leaves its lake: an empty folder, or that of a former demo.",
)
@click.option("--full", "is_full", is_flag=True, help="Load every flight of the year.")
@example("pgstream demo")
def demo(folder: Path, is_full: bool) -> int:
    """
    Run a whole pipeline on real data and compare the results.

    Starts private servers: two databases of a Postgres, an OpenSearch, a Kafka and a receiver of
    webhooks; needs no server and no settings. Exits with 1 if anything differs.
    """
    from pgstream_dagster.demo.printing import Steps
    from pgstream_dagster.demo.run import COMPILER, run
    from pgstream_dagster.runtime.java import with_options

    if not is_full:
        os.environ["JDK_JAVA_OPTIONS"] = with_options(os.environ, COMPILER)
    steps = Steps(click.echo)
    line = steps.bar if sys.stderr.isatty() else lambda: None  # lines of their own say it elsewhere
    summary = run_with_progress(lambda: run(folder, steps, is_full=is_full), line=line)
    click.echo("\n".join(summary.lines()))
    return ExitCode.OK if summary.identical else ExitCode.PROBLEM


@pgstream.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="The port of the UI on 127.0.0.1.  [default: 3000, or another one if that is taken]",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where lake, logs and Dagster's home are kept: an empty folder, or that of a former run."
    "  [default: a temporary folder]",
)
@example("pgstream dev", "pgstream dev --port 3001 --folder .dev")
def dev(*, port: int | None, folder: Path | None) -> None:
    """
    Show Dagster's UI on a live pipeline of its own.

    Starts a private Postgres, OpenSearch and Kafka; needs no server and no settings. Small tables
    with continuous writes. Runs until Ctrl-C or SIGTERM, then ends everything it started.
    """
    from pgstream_dagster.demo.dev import run

    stop = threading.Event()
    run_with_progress(lambda: run(folder, port, os.environ, stop=stop, echo=click.echo), stop=stop)
