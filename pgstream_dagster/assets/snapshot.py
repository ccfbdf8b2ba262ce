"""Copies of tables into the change log as an asset: one partition per table."""

from collections.abc import Sequence
from typing import Any, Final

import dagster as dg

from pgstream_dagster.assets.errors import told_to_dagster
from pgstream_dagster.operations import snapshot as operation
from pgstream_dagster.operations.attend import attend
from pgstream_dagster.operations.copying import Copied
from pgstream_dagster.resources.pipeline import PipelineFile

TABLES: Final = "pgstream_tables"
"""The partitions: `namespace.name` of every table that was copied once; `setup` adds them."""

POOL: Final = "copy"
"""One run per table, one after the other: each has a JVM."""


@dg.multi_asset(
    name="copy_tables",  # an op may not have the name of a job, and the job is `snapshot`
    specs=[
        dg.AssetSpec(
            "snapshot",
            group_name="landing",
            kinds={"postgres", "deltalake"},
            owners=["team:data"],
            description="A copy of one table as of one position, in the change log under its"
            " marker. Readers start the table anew from its newest copy.",
        )
    ],
    partitions_def=dg.DynamicPartitionsDefinition(name=TABLES),
    pool=POOL,
)
def snapshot(
    context: dg.AssetExecutionContext, pipeline: PipelineFile
) -> dg.MaterializeResult[Any]:
    """Copy the tables of this run's partitions again; the stream goes on meanwhile."""
    with told_to_dagster():
        opened, tables = pipeline.open(), context.partition_keys
        copied = attend(lambda: operation.snapshot(opened, tables))
    return dg.MaterializeResult(metadata=metadata(copied))


def tell_copies(context: dg.OpExecutionContext, copied: Sequence[Copied]) -> None:
    """Of a job that copies many tables in one run: a partition and its materialization for each."""
    context.instance.add_dynamic_partitions(TABLES, [copy.table for copy in copied])
    for copy in copied:
        event = dg.AssetMaterialization("snapshot", partition=copy.table, metadata=metadata([copy]))
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
