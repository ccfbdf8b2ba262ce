"""`main`: run a command, turn what ended it into a message and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from pgstream_dagster.cli.commands import pgstream
from pgstream_dagster.cli.exits import SIGNAL_BASE, ExitCode, exit_code
from pgstream_dagster.cli.interrupt import Interrupted
from pgstream_dagster.errors import PgstreamError


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script `pgstream`."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    if code > SIGNAL_BASE:
        # What was left behind may be inside a Spark job, and the interpreter would wait for its
        # threads. The JVM and embedded servers end with us, and whatever is durable is sound.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Every `PgstreamError` is one message without a traceback."""
    try:
        said = pgstream.main(args=list(arguments), prog_name="pgstream", standalone_mode=False)
    except (Interrupted, Exception) as error:  # noqa: BLE001 - the last one who can say anything
        return _told(error)
    return said if isinstance(said, int) else ExitCode.OK


def _told(error: BaseException) -> int:
    """Say what ended the command, to stderr; its exit code."""
    match error:
        case Interrupted():
            _say(f"interrupted by {error}: run again, the same command goes on; a demo starts over")
            return error.exit_code
        case click.ClickException():
            error.show()
        case click.Abort():
            _say("nothing done")
        case BrokenPipeError():  # the reader of our output (head, less) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.OK
        case PgstreamError():
            _say("\n".join([str(error), *getattr(error, "__notes__", [])]))
        case _:
            traceback.print_exception(error)
            _say("this is an error of pgstream itself; please report it with the lines above")
    return exit_code(error)


def _say(message: str) -> None:
    click.echo(f"pgstream: {message}", err=True)
