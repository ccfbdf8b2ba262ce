"""
The composition root: the only place that names every asset, check, job, schedule and sensor.

Loads without a server and without a single variable set: what a run needs is read when it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from pgstream_dagster import checks, jobs, schedules, sensors
from pgstream_dagster.assets.landing import change_log
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.replay import replay
from pgstream_dagster.assets.search import index_assets
from pgstream_dagster.assets.snapshot import snapshot
from pgstream_dagster.assets.source import source_tables
from pgstream_dagster.config import load
from pgstream_dagster.resources.environment import pipeline_file
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.pipeline import PipelineFile
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster


def build_definitions(
    file: Path,
    *,
    source: PostgresSource | None = None,
    lake: DeltaLake | None = None,
    search: SearchCluster | None = None,
    prefix: str = "",
    executor: dg.ExecutorDefinition = dg.in_process_executor,
) -> dg.Definitions:
    """
    Everything Dagster shows for the pipeline of `file`.

    Source, lake and search cluster are taken from the environment where they are not given. What
    belongs to search indices is there when the file names one. With a `prefix` every name begins
    with it, and `dg.Definitions.merge` takes several pipelines of one `executor`. In one process a
    run has one JVM; `dg.multiprocess_executor` gives every step a process and a JVM of its own.

    Raises:
        InvalidPipeline: the file is there and wrong. That it is missing is said by the run that
            needs it, so that definitions load anywhere.
        ValueError: the prefix has characters that Dagster takes in no name.
    """
    names = Names(prefix)
    search_of_file = load(file).search if file.exists() else {}
    indices = index_assets(names, search_of_file)
    of_indices = checks.of_search(names, search_of_file)
    asset_checks = [*checks.of_pipeline(names), *of_indices]
    all_jobs = [
        *jobs.of_pipeline(names, asset_checks),
        *jobs.of_search(names, indices, of_indices),
    ]
    source, lake, search = (
        source or PostgresSource(),
        lake or DeltaLake(),
        search or SearchCluster(),
    )
    assets = [snapshot(names), change_log(names), replay(names), *indices]
    keys = {key for asset in assets for key in asset.keys}
    pipeline = PipelineFile(file=str(file.absolute()), source=source, lake=lake, search=search)
    return dg.Definitions(
        assets=[source_tables(names), *assets],
        asset_checks=asset_checks,
        jobs=all_jobs,
        schedules=[*schedules.of_pipeline(names), *schedules.of_search(names, indices)],
        sensors=[
            sensors.keep_stream(names),
            *([sensors.keep_index(names)] if indices else []),
            sensors.tell_failure(names, keys, {job.name for job in all_jobs}),
        ],
        resources={
            names.of("source"): source,
            names.of("lake"): lake,
            names.of("search"): search,
            names.of("pipeline"): pipeline,
        },
        executor=executor,
    )


defs = build_definitions(pipeline_file(None, os.environ))
