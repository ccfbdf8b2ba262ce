"""
The composition root: the only place that names every asset, check, job, schedule and sensor.

Loads without a server and without a single variable set: what a run needs is read when it starts.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from pgstream_dagster import checks, jobs, schedules, sensors
from pgstream_dagster.assets.landing import change_log
from pgstream_dagster.assets.names import Names, PgstreamTranslator
from pgstream_dagster.assets.replay import FIRST_DAY, replay
from pgstream_dagster.assets.search import index_assets
from pgstream_dagster.assets.sinks import sink_assets
from pgstream_dagster.assets.snapshot import SNAPSHOT, snapshot
from pgstream_dagster.assets.source import SOURCE, source_tables, source_topics
from pgstream_dagster.assets.tables import table_assets
from pgstream_dagster.config import PipelineConfig
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.resources.pipeline import PipelineFile
from pgstream_dagster.resources.postgres import PostgresSource
from pgstream_dagster.resources.search import SearchCluster
from pgstream_dagster.tables.assignment import named_in_file, without_histories


def build_definitions(  # noqa: PLR0913 - the public entry point: each has a default
    file: Path,
    *,
    text: str | None = None,
    source: PostgresSource | None = None,
    lake: DeltaLake | None = None,
    search: SearchCluster | None = None,
    prefix: str = "",
    executor: dg.ExecutorDefinition = dg.in_process_executor,
    translator: PgstreamTranslator | None = None,
    first_day: str = FIRST_DAY,
) -> dg.Definitions:
    """
    Everything Dagster shows for the pipeline of `file`, or of `text` where that is given.

    Source, lake and search cluster are taken from the environment where they are not given. What
    belongs to search indices, sinks, typed tables or an outbox is there when the file names one,
    what belongs to slots and copies when the source is Postgres. A typed table is an asset if the
    file names its table without a wildcard, or if it is in the lake already. With a `prefix`, in
    parts separated by `/`, every name begins with it, so that `dg.Definitions.merge` takes several
    pipelines. The `executor` is that of our jobs only: in one process a run has one JVM; with
    `dg.multiprocess_executor` each step has a process and a JVM of its own. A `translator` changes
    keys, groups, owners, tags and automation conditions of assets. `daily_changes` has a partition
    for each day from `first_day`.

    Raises:
        InvalidPipeline: the file is there and wrong. If it is missing, the run that needs it fails,
            so that definitions load anywhere.
        ValueError: the prefix has characters that Dagster does not accept.
    """
    source, lake = source or PostgresSource(), lake or DeltaLake()
    search = search or SearchCluster()
    pipeline = PipelineFile(
        file=str(file.absolute()), text=text, source=source, lake=lake, search=search
    )
    config = pipeline.config() if text is not None or file.exists() else None
    aliases, targets = (config.search, config.sinks) if config else ({}, {})
    is_postgres = config is None or config.source.kafka is None
    has_outbox = is_postgres and config is not None and config.outbox is not None
    has_tables = config is not None and config.tables is not None
    tables = typed_tables(config, lake)
    name = config.pipeline if config else file.stem
    names = Names(prefix, name, translator or PgstreamTranslator())
    indices = index_assets(names, aliases)
    index_checks = checks.of_search(names, aliases)
    asset_checks = [
        *checks.of_pipeline(names),
        *(checks.of_postgres(names) if is_postgres else []),
        *index_checks,
        *checks.of_sinks(names, targets),
        *(checks.of_tables(names, tables)),
    ]
    all_jobs = [
        *jobs.of_pipeline(names, executor, asset_checks),
        *(jobs.of_postgres(names, executor) if is_postgres else []),
        *jobs.of_search(names, executor, indices, index_checks),
        *(jobs.of_sinks(names, executor) if targets else []),
        *(jobs.of_outbox(names, executor) if has_outbox else []),
        *(jobs.of_tables(names, executor, tables) if has_tables else []),
    ]
    of_postgres = [snapshot(names), replay(names, first_day)] if is_postgres else []
    of_tables = [table_assets(names, tables)] if has_tables else []
    assets = [*of_postgres, *indices, *of_tables]
    keys = {key for asset in assets for key in asset.keys}
    return dg.Definitions(
        assets=[
            source_tables(names) if is_postgres else source_topics(names),
            change_log(names, SOURCE, *([SNAPSHOT] if is_postgres else [])),
            *assets,
            *sink_assets(names, targets),
        ],
        asset_checks=[
            *asset_checks,
            *(checks.of_typed_rows(names, tables) if is_postgres else []),
        ],
        jobs=all_jobs,
        schedules=[
            *schedules.of_pipeline(names),
            *(schedules.of_postgres(names) if is_postgres else []),
            *schedules.of_search(names, indices),
            *(schedules.of_outbox(names) if has_outbox else []),
            *(schedules.of_tables(names, has_source=is_postgres) if has_tables else []),
        ],
        sensors=[
            sensors.keep_stream(names),
            *([sensors.keep_index(names)] if indices else []),
            *([sensors.keep_sinks(names)] if targets else []),
            sensors.report_failure(names, keys, {job.name for job in all_jobs}),
        ],
        resources={
            names.resource("source"): source,
            names.resource("lake"): lake,
            names.resource("search"): search,
            names.resource("pipeline"): pipeline,
        },
    )


def typed_tables(config: PipelineConfig | None, lake: DeltaLake) -> list[str]:
    """The typed tables that are known when definitions load, by name."""
    if config is None or config.tables is None:
        return []
    captured = () if config.source.tables == "all" else config.source.tables
    named = named_in_file(config.tables, captured)
    return sorted({*named, *without_histories(lake.typed_tables(), config.tables)})
