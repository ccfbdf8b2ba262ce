"""Copies of tables into the change log as an asset: one partition per table."""

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from pgstream_dagster.assets.columns import SCHEMA, of_table
from pgstream_dagster.assets.errors import told_to_dagster
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

The stream adds them while it runs, so they are there however a table came to be published.
"""

LOOK_SECONDS: Final = 60.0
"""Between looks at publication and ledger."""

POINT: Final = "consistent_point"
"""Of a copy: its rows are those of the source at this position."""

POOL: Final = "copy"
"""One run per table, one after the other: each has a JVM."""


def partitions(names: Names) -> dg.DynamicPartitionsDefinition:
    """The tables of one pipeline."""
    return dg.DynamicPartitionsDefinition(name=names.in_instance(TABLES))


def add_partitions(instance: dg.DagsterInstance, names: Names, opened: Pipeline) -> list[str]:
    """
    Make every published table a partition, and give back the tables.

    Those that left the publication keep theirs: their history hangs on it.

    Raises:
        Unreachable, AccessRefused, ...: the source does not answer.
    """
    name, tables = names.in_instance(TABLES), published_tables(opened)
    known = set(instance.get_dynamic_partitions(name))
    if missing := [table for table in tables if table not in known]:
        instance.add_dynamic_partitions(name, missing)
    return tables


class Copies:
    """
    The page of `snapshot` while a stream runs in this process, kept by the op's thread.

    Copies are made by `pgstream setup`, too, and by the stream itself; each is told once.
    """

    def __init__(self, context: dg.OpExecutionContext, names: Names, opened: Pipeline) -> None:
        self._context, self._names, self._opened = context, names, opened
        self._next = -math.inf
        self._told: dict[str, Lsn] = {}

    def look(self) -> None:
        """Tell what is new, when it is time to look."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_SECONDS
        try:
            tables = add_partitions(self._context.instance, self._names, self._opened)
            from pgstream_dagster.upkeep.log_checks import newest_copies, newest_schemas

            copies = newest_copies(self._opened)
            new = {
                table: copy
                for table, copy in copies.items()
                if table in tables and self._told.get(table) != copy.consistent_point
            }
            schemas = newest_schemas(self._opened) if new else {}
        except PgstreamError as error:  # the stream says so itself, and waits
            logger.warning("'%s' is looked at later: %s", SNAPSHOT, error)
            return
        for table, copy in new.items():
            self._tell(table, copy.consistent_point, schemas[copy.relation_id])
            self._told[table] = copy.consistent_point

    def _tell(self, table: str, at: Lsn, schema: TableSchema) -> None:
        key = self._names.key(SNAPSHOT)
        of_partition = dg.AssetRecordsFilter(key, asset_partitions=[table])
        newest = self._context.instance.fetch_materializations(of_partition, limit=1).records
        said = newest[0].asset_materialization if newest else None
        if said is None or said.metadata.get(POINT) != dg.MetadataValue.text(str(at)):
            told = {**position(POINT, at), SCHEMA: of_table(schema)}
            self._context.log_event(dg.AssetMaterialization(key, partition=table, metadata=told))


def snapshot(names: Names) -> dg.AssetsDefinition:
    """The asset of one pipeline."""

    @dg.multi_asset(
        name=names.of("copy_tables"),  # an op may not have the name of a job: that is `snapshot`
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
        """Copy the tables of this run's partitions again; the stream goes on meanwhile."""
        from pgstream_dagster.copy.snapshot import snapshot

        with told_to_dagster():
            opened, tables = names.open(context), context.partition_keys
            done = run_cancellable(lambda stop: snapshot(opened, tables, stop=stop))
        return dg.MaterializeResult(metadata=metadata(done))

    return copied


def tell_copies(context: dg.OpExecutionContext, names: Names, copied: Sequence["Copied"]) -> None:
    """Of a job that copies many tables in one run: a partition and its materialization for each."""
    key = names.key(SNAPSHOT)
    tables = [copy.table for copy in copied]
    context.instance.add_dynamic_partitions(names.in_instance(TABLES), tables)
    for copy in copied:
        event = dg.AssetMaterialization(key, partition=copy.table, metadata=metadata([copy]))
        context.log_event(event)


def metadata(copied: Sequence["Copied"]) -> dict[str, Any]:
    """Rows, position and columns of a copy; of several in one run, the rows together."""
    rows = sum(copy.rows for copy in copied)
    if not copied:
        return {"dagster/row_count": 0}
    newest = max(copied, key=lambda copy: copy.consistent_point)
    return {
        "dagster/row_count": rows,
        **position(POINT, newest.consistent_point),
        "delta_version": newest.version,
        "seconds": newest.seconds,
        **({SCHEMA: of_table(newest.schema)} if len(copied) == 1 else {}),
    }
