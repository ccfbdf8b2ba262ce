"""`main`: run a command; turn an error that ends it into a message and an exit code."""

from __future__ import annotations

import os
import select
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
        # The abandoned operation may be inside a Spark job, and the interpreter would wait for its
        # threads. The JVM and embedded servers end with us; everything durable is consistent.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. A `PgstreamError` is one message without a traceback."""
    try:
        code = pgstream.main(args=list(arguments), prog_name="pgstream", standalone_mode=False)
    except SystemExit:  # what click makes of every broken pipe
        return _report(BrokenPipeError())
    except (Interrupted, Exception) as error:  # noqa: BLE001 - the last handler
        return _report(error)
    return code if isinstance(code, int) else ExitCode.OK


def _report(error: BaseException) -> int:
    """Print to stderr what ended the command; its exit code."""
    match error:
        case Interrupted():
            remedy = "run the same command again to continue; a demo starts over"
            _print(f"interrupted by {error}: {remedy}")
            return error.exit_code
        case click.ClickException():
            error.show()
        case click.Abort():
            _print("nothing done")
        case BrokenPipeError() if _is_output_closed():  # by its reader, such as head or less
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.OK
        case PgstreamError():
            _print("\n".join([str(error), *getattr(error, "__notes__", [])]))
        case _:
            traceback.print_exception(error)
            _print("this is an error of pgstream itself; please report it with the lines above")
    return exit_code(error)


def _is_output_closed() -> bool:
    """Whether nobody reads what we print, as opposed to another pipe or connection that broke."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _print(message: str) -> None:
    click.echo(f"pgstream: {message}", err=True)
