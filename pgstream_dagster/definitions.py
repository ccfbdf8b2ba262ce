"""
The composition root: the only place that names every asset, resource and job.

Loads without a server and without a single variable set: what a run needs is read when it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from pgstream_dagster import jobs
from pgstream_dagster.assets.landing import change_log
from pgstream_dagster.assets.snapshot import snapshot
from pgstream_dagster.config import load
from pgstream_dagster.resources.environment import pipeline_file
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.pipeline import PipelineFile
from pgstream_dagster.resources.postgres import PostgresSource


def build_definitions(
    file: Path, *, source: PostgresSource | None = None, lake: DeltaLake | None = None
) -> dg.Definitions:
    """
    Everything Dagster shows for the pipeline of `file`.

    Source and lake are taken from the environment where they are not given.

    Raises:
        InvalidPipeline: the file is there and wrong. That it is missing is said by the run that
            needs it, so that definitions load anywhere.
    """
    if file.exists():
        load(file)
    source, lake = source or PostgresSource(), lake or DeltaLake()
    pipeline = PipelineFile(file=str(file.absolute()), source=source, lake=lake)
    return dg.Definitions(
        assets=[snapshot, change_log],
        jobs=jobs.JOBS,
        resources={"source": source, "lake": lake, "pipeline": pipeline},
        # One process a run: it has the JVM, and a signal reaches the op.
        executor=dg.in_process_executor,
    )


defs = build_definitions(pipeline_file(None, os.environ))
