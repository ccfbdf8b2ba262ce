"""Copies of tables into the change log as an asset: one partition per table."""

from collections.abc import Sequence
from typing import Any, Final

import dagster as dg

from pgstream_dagster.assets.errors import told_to_dagster
from pgstream_dagster.assets.names import Names
from pgstream_dagster.operations import snapshot as operation
from pgstream_dagster.operations.attend import attend
from pgstream_dagster.operations.copying import Copied

SNAPSHOT: Final = "snapshot"

TABLES: Final = "pgstream_tables"
"""The partitions: `namespace.name` of every table that was copied once; `setup` adds them."""

POOL: Final = "copy"
"""One run per table, one after the other: each has a JVM."""


def partitions(names: Names) -> dg.DynamicPartitionsDefinition:
    """The tables of one pipeline."""
    return dg.DynamicPartitionsDefinition(name=names.of(TABLES))


def snapshot(names: Names) -> dg.AssetsDefinition:
    """The asset of one pipeline."""

    @dg.multi_asset(
        name=names.of("copy_tables"),  # an op may not have the name of a job: that is `snapshot`
        specs=[
            dg.AssetSpec(
                names.key(SNAPSHOT),
                group_name="landing",
                kinds={"postgres", "deltalake"},
                owners=["team:data"],
                description="A copy of one table as of one position, in the change log under its"
                " marker. Readers start the table anew from its newest copy.",
            )
        ],
        partitions_def=partitions(names),
        pool=names.of(POOL),
        required_resource_keys=names.resources,
    )
    def copied(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        """Copy the tables of this run's partitions again; the stream goes on meanwhile."""
        with told_to_dagster():
            opened, tables = names.open(context), context.partition_keys
            done = attend(lambda: operation.snapshot(opened, tables))
        return dg.MaterializeResult(metadata=metadata(done))

    return copied


def tell_copies(context: dg.OpExecutionContext, names: Names, copied: Sequence[Copied]) -> None:
    """Of a job that copies many tables in one run: a partition and its materialization for each."""
    key = names.key(SNAPSHOT)
    tables = [copy.table for copy in copied]
    context.instance.add_dynamic_partitions(names.of(TABLES), tables)
    for copy in copied:
        event = dg.AssetMaterialization(key, partition=copy.table, metadata=metadata([copy]))
        context.log_event(event)


def metadata(copied: Sequence[Copied]) -> dict[str, Any]:
    """Rows and position of a copy; of several in one run, the rows together."""
    rows = sum(copy.rows for copy in copied)
    if not copied:
        return {"dagster/row_count": 0}
    newest = max(copied, key=lambda copy: copy.consistent_point)
    return {
        "dagster/row_count": rows,
        "consistent_point": str(newest.consistent_point),
        "consistent_point_lsn": int(newest.consistent_point),
        "delta_version": newest.version,
        "seconds": newest.seconds,
    }
