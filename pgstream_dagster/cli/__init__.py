"""
`pgstream`: a thin command line over the operations that the Dagster jobs run.

Arguments go in; a result on stdout and an exit code come out. May import the engine and `demo`;
`dagster` is imported by `--dagster` only. A command imports its operation when it runs. Read
`commands`, then `run`.
"""

from __future__ import annotations

from pgstream_dagster.cli import sinks  # isort: skip
from pgstream_dagster.cli import tables  # isort: skip
from pgstream_dagster.cli import sql  # isort: skip
from pgstream_dagster.cli import outbox  # isort: skip
from pgstream_dagster.cli import rules  # isort: skip
from pgstream_dagster.cli import schema  # isort: skip
from pgstream_dagster.cli import demo  # isort: skip - in the order of `--help`
from pgstream_dagster.cli.run import main

__all__ = ["demo", "main", "outbox", "rules", "schema", "sinks", "sql", "tables"]
