"""`optimize`: keep the lake's files few and large, and remove what is no longer needed."""

from __future__ import annotations

import logging
from typing import Final

from pgstream_dagster.changelog import optimize as changelog
from pgstream_dagster.changelog.dead_letters import DeadLetters
from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.changelog.optimize import Optimized, Report
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.changelog.sink_letters import SinkLetters
from pgstream_dagster.changelog.table_specs import (
    DEAD_LETTERS,
    SINKS_DAYS,
    create_sinks,
    create_typed_tables,
)
from pgstream_dagster.delta import delta_table, jvm
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.upkeep import optimize_tables

logger: Final = logging.getLogger(__name__)


@named
def optimize(pipeline: Pipeline, report: Report = lambda _: None) -> Optimized:
    """
    Rewrite small files into large ones, then remove replaced files and old log entries.

    Safe at any time, while streams land and readers read; ended in the middle, the next run goes
    on. Two at once: the second one leaves the rest to the first.

    Raises:
        NotSetUp: `setup` was never run.
        NotClustered: a typed table cannot be, by the columns named; everything else is done.
    """
    lake = pipeline.lake
    gateway = pipeline.gateway()
    spark = jvm.spark(pipeline.jvm)
    done = changelog.optimize(lake.change_log, spark, gateway, report=report)
    small_tables: list[SmallTable] = [Ledger(lake, gateway), SchemaLog(lake, gateway)]
    if pipeline.config.search:
        delta_table.create(lake.dead_letters, DEAD_LETTERS, gateway)  # the indexer may not have yet
        small_tables.append(DeadLetters(lake, gateway))
    if pipeline.config.sinks:
        create_sinks(lake, gateway)
        small_tables.append(SinkLetters(lake, gateway))
        changelog.vacuum(lake.sinks, spark)  # it merges its own files
        changelog.clean_log(lake.sinks, days=SINKS_DAYS)
    if pipeline.config.tables is not None:
        create_typed_tables(lake, gateway)
        changelog.vacuum(lake.typed_tables, spark)
        changelog.clean_log(lake.typed_tables, days=SINKS_DAYS)
    for table in small_tables:
        table.merge()
        table.close()
    for table in (lake.change_log, *(small.uri for small in small_tables)):
        changelog.vacuum(table, spark)
        removed = changelog.clean_log(table)
        logger.info("%s: %d old log files removed", table, removed)
    if pipeline.config.tables is not None:
        optimize_tables(pipeline, spark)
    return done
