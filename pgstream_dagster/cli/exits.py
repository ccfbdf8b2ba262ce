"""Exit codes of `pgstream`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import click

from pgstream_dagster.errors import ConfigError, PgstreamError, Retry


class ExitCode(IntEnum):
    """Documented in `--help` and docs/reference/command-line.md; scripts depend on the numbers."""

    OK = 0
    PROBLEM = 1
    CONFIGURATION = 2
    AFTER_FIX = 3
    LATER = 4
    BUG = 5


MEANINGS: Final = {
    ExitCode.OK: "done; a stream that was stopped has landed and confirmed what was complete",
    ExitCode.PROBLEM: "done, and a problem was found: differences, or what would stop the stream",
    ExitCode.CONFIGURATION: "the command line, pgstream.yaml or the environment is wrong",
    ExitCode.AFTER_FIX: "a person must act; the message names the remedy",
    ExitCode.LATER: "the same command may succeed later (network, a server that is starting)",
    ExitCode.BUG: "an error of pgstream itself; please report it",
}

SIGNAL_BASE: Final = 128
"""An interrupted command exits with 128 + the signal, as in shells: 130 Ctrl-C, 143 SIGTERM."""


def exit_code(error: BaseException) -> ExitCode:
    """The exit code for an error that ended a command."""
    match error:
        case ConfigError() | click.ClickException() | click.Abort():
            return ExitCode.CONFIGURATION
        case PgstreamError(retry=Retry.AFTER_FIX):
            return ExitCode.AFTER_FIX
        case PgstreamError(retry=Retry.LATER):
            return ExitCode.LATER
        case _:
            return ExitCode.BUG


INTERRUPTED: Final = "130, 143 | interrupted before the end (Ctrl-C, SIGTERM)"


def described() -> str:
    """The table of codes for `--help`."""
    lines = [f"  {code:3d}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n".join([*lines, "  " + INTERRUPTED.replace(" |", " ")])
