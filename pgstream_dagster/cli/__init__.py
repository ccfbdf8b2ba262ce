"""`pgstream`: a thin command line over the operations that the Dagster jobs run."""

from __future__ import annotations

from pgstream_dagster.cli import rules, sinks  # they add their commands
from pgstream_dagster.cli.run import main

__all__ = ["main", "rules", "sinks"]
