"""Copies of tables into the change log as an asset: one partition per table."""

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from pgstream_dagster.assets.columns import SCHEMA, table_columns
from pgstream_dagster.assets.errors import as_dagster_errors
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.source import SOURCE
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.threads import run_cancellable
from pgstream_dagster.upkeep.health import published_tables

if TYPE_CHECKING:
    from pgstream_dagster.copy.copying import Copied

logger = logging.getLogger(__name__)

SNAPSHOT: Final = "snapshot"

TABLES: Final = "tables"
"""
The partitions: `namespace.name` of every table that is or was published.

The stream adds them while it runs, however a table came to be published.
"""

POLL_SECONDS: Final = 60.0
"""Between queries of publication and ledger."""

POINT: Final = "consistent_point"
"""Of a copy: its rows are those of the source at this position."""

POOL: Final = "copy"
"""One run per table, one after the other: each has a JVM."""


def partitions(names: Names) -> dg.DynamicPartitionsDefinition:
    """The tables of one pipeline."""
    return dg.DynamicPartitionsDefinition(name=names.in_instance(TABLES))


def add_partitions(instance: dg.DagsterInstance, names: Names, pipeline: Pipeline) -> list[str]:
    """
    Make every published table a partition, and return the tables.

    Tables that left the publication keep their partition, and with it their history.

    Raises:
        Unreachable, AccessRefused, ...: the source does not answer.
    """
    tables = published_tables(pipeline)
    instance.add_dynamic_partitions(names.in_instance(TABLES), tables)  # skips those it has
    return tables


class Copies:
    """
    The copies made while a stream runs in this process, reported from the op's thread.

    `pgstream setup` and the stream itself also make copies; each copy is reported once.
    """

    def __init__(self, context: dg.OpExecutionContext, names: Names, pipeline: Pipeline) -> None:
        self._context, self._names, self._pipeline = context, names, pipeline
        self._next_poll = -math.inf
        self._reported: dict[str, Lsn] = {}

    def poll(self) -> None:
        """Report new copies, when a poll is due."""
        if time.monotonic() < self._next_poll:
            return
        self._next_poll = time.monotonic() + POLL_SECONDS
        try:
            tables = add_partitions(self._context.instance, self._names, self._pipeline)
            from pgstream_dagster.upkeep.log_checks import newest_copies, newest_schemas

            copies = newest_copies(self._pipeline)
            new = {
                table: copy
                for table, copy in copies.items()
                if table in tables and self._reported.get(table) != copy.consistent_point
            }
            schemas = newest_schemas(self._pipeline) if new else {}
        except PgstreamError as error:  # the stream reports that itself, and waits
            logger.warning("'%s' is checked later: %s", SNAPSHOT, error)
            return
        for table, copy in new.items():
            self._report(table, copy.consistent_point, schemas[copy.relation_id])
            self._reported[table] = copy.consistent_point

    def _report(self, table: str, at: Lsn, schema: TableSchema) -> None:
        key = self._names.key(SNAPSHOT)
        partition = dg.AssetRecordsFilter(key, asset_partitions=[table])
        newest = self._context.instance.fetch_materializations(partition, limit=1).records
        event = newest[0].asset_materialization if newest else None
        if event is None or event.metadata.get(POINT) != dg.MetadataValue.text(str(at)):
            facts = {**position(POINT, at), SCHEMA: table_columns(schema)}
            self._context.log_event(dg.AssetMaterialization(key, partition=table, metadata=facts))


def snapshot(names: Names) -> dg.AssetsDefinition:
    """The asset of one pipeline."""

    @dg.multi_asset(
        name=names.prefixed(
            "copy_tables"
        ),  # an op may not have the name of a job: that is `snapshot`
        specs=[
            names.spec(
                SNAPSHOT,
                deps=[names.key(SOURCE)],
                group_name="landing",
                kinds={"postgres", "deltalake"},
                description="A copy of one table as of one position, in the change log under its"
                " marker. Readers start the table again from its newest copy.",
            )
        ],
        partitions_def=partitions(names),
        pool=names.in_instance(POOL),
        required_resource_keys=names.resources,
    )
    def copied(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        """Copy the tables of this run's partitions again; the stream continues meanwhile."""
        from pgstream_dagster.copy.snapshot import snapshot

        with as_dagster_errors():
            pipeline, tables = names.open(context), context.partition_keys
            done = run_cancellable(lambda stop: snapshot(pipeline, tables, stop=stop))
        return dg.MaterializeResult(metadata=metadata(done))

    return copied


def report_copies(context: dg.OpExecutionContext, names: Names, copied: Sequence["Copied"]) -> None:
    """Add a partition and its materialization for every table that a job copied in one run."""
    key = names.key(SNAPSHOT)
    tables = [copy.table for copy in copied]
    context.instance.add_dynamic_partitions(names.in_instance(TABLES), tables)
    for copy in copied:
        event = dg.AssetMaterialization(key, partition=copy.table, metadata=metadata([copy]))
        context.log_event(event)


def metadata(copied: Sequence["Copied"]) -> dict[str, Any]:
    """Rows, position and columns of a copy; of several in one run, the sum of their rows."""
    if not copied:
        return {"dagster/row_count": 0}
    newest = max(copied, key=lambda copy: copy.consistent_point)
    return {
        "dagster/row_count": sum(copy.rows for copy in copied),
        **position(POINT, newest.consistent_point),
        "delta_version": newest.version,
        "seconds": newest.seconds,
        **({SCHEMA: table_columns(newest.schema)} if len(copied) == 1 else {}),
    }
