"""`pgstream`: a thin face on the same operations that the Dagster jobs run."""

from __future__ import annotations

from pgstream_dagster.cli.run import main

__all__ = ["main"]
