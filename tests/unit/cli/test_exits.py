"""Exit codes, error messages and help."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pgstream_dagster import errors
from pgstream_dagster.cli import commands, run
from pgstream_dagster.cli.exits import ExitCode, exit_code
from pgstream_dagster.cli.interrupt import Interrupted
from pgstream_dagster.lsn import Lsn

COMMANDS = sorted(commands.pgstream.commands)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.MissingSetting("X", "y"), 2),
        (errors.SlotLost("s", Lsn(1), "wal_removed"), 3),
        (errors.Unreachable("db:5432/shop", "refused"), 4),
        (errors.ProtocolError("damage"), 5),
        (ZeroDivisionError(), 5),
        (click.UsageError("what?"), 2),
    ],
)
def test_exit_code_of_an_error(error, code):
    assert exit_code(error) == code


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example_that_names_it(command):
    shown = CliRunner().invoke(commands.pgstream, [command, "--help"])
    assert shown.exit_code == 0
    assert re.search(rf"  Example:\n    pgstream {command}", shown.output)


def test_help_documents_every_exit_code():
    shown = CliRunner().invoke(commands.pgstream, ["--help"]).output
    for code in ExitCode:
        assert re.search(rf"^ +{code:d}  \w", shown, re.MULTILINE)


def test_error_of_ours_is_one_message_without_a_traceback(monkeypatch, capsys):
    ended_by(monkeypatch, errors.SlotMissing("pgstream_shop"))
    assert run.run(["status"]) == ExitCode.AFTER_FIX
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pgstream: slot 'pgstream_shop' does not exist")
    assert len(printed.err.splitlines()) == 1


def test_unknown_error_shows_where_it_came_from(monkeypatch, capsys):
    ended_by(monkeypatch, ZeroDivisionError("boom"))
    assert run.run(["status"]) == ExitCode.BUG
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "boom" in printed


def test_interruption_exits_as_in_shells(monkeypatch, capsys):
    ended_by(monkeypatch, Interrupted(15))
    assert run.run(["setup"]) == 143
    assert "interrupted by SIGTERM" in capsys.readouterr().err


def test_unknown_command_is_a_usage_error(capsys):
    assert run.run(["strem"]) == ExitCode.CONFIGURATION
    assert "No such command 'strem'" in capsys.readouterr().err


def ended_by(monkeypatch, error: BaseException) -> None:
    def raise_it(_file: Path | None):
        raise error

    monkeypatch.setattr(commands, "read_pipeline", raise_it)
