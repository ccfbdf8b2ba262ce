"""
The jobs: one operation of the engine each, under the name the command line has for it.

`stream`, `snapshot` and `reindex` materialise assets; the others act on the pipeline as a whole, or
on an alias. An op may not have the name of a job, so the ops are named for what they do.
"""

import threading
from collections.abc import Sequence
from typing import Any, Final

import dagster as dg
from pydantic import Field

from pgstream_dagster.assets import search
from pgstream_dagster.assets.errors import metadata, told_to_dagster
from pgstream_dagster.assets.landing import change_log
from pgstream_dagster.assets.snapshot import snapshot as snapshot_asset
from pgstream_dagster.assets.snapshot import tell_copies
from pgstream_dagster.assets.tell import LOOK_SECONDS, Teller
from pgstream_dagster.errors import NotReconciled
from pgstream_dagster.operations import index as indexing
from pgstream_dagster.operations import optimize as optimizing
from pgstream_dagster.operations import reconcile as reconciling
from pgstream_dagster.operations import redrive as redriving
from pgstream_dagster.operations import resnapshot as repairing
from pgstream_dagster.operations import rollback as rolling_back
from pgstream_dagster.operations import setup as setting_up
from pgstream_dagster.operations import teardown as tearing_down
from pgstream_dagster.operations.attend import attend
from pgstream_dagster.operations.reconcile import Reconciliation
from pgstream_dagster.resources.pipeline import PipelineFile

STREAM_TAG: Final = "pgstream/stream"
"""On every run that streams, for those who look for one."""

INDEX_POOL: Final = "index"
"""Of the live indexer only: a second one would wait behind it, not for its leases."""


@dg.op
def make_slot_and_copy_tables(context: dg.OpExecutionContext, pipeline: PipelineFile) -> None:
    """Make what is missing of publication, slot and watermark; copy every table without a copy."""
    with told_to_dagster():
        opened = pipeline.open()
        tell_copies(context, attend(lambda: setting_up.setup(opened)))


@dg.op
def repair_slot_and_copy_tables(context: dg.OpExecutionContext, pipeline: PipelineFile) -> None:
    """Make a new slot, land the gap it leaves, copy every table."""
    with told_to_dagster():
        opened = pipeline.open()
        tell_copies(context, attend(lambda: repairing.resnapshot(opened)))


@dg.op
def rewrite_small_files(context: dg.OpExecutionContext, pipeline: PipelineFile) -> None:
    """Rewrite the log's small files into large ones, beside landing and readers."""
    with told_to_dagster():
        opened = pipeline.open()
        done = attend(lambda: optimizing.optimize(opened))
    context.add_output_metadata(
        {
            "removed_files": done.removed_files,
            "added_files": done.added_files,
            "rows": done.rows,
            "bytes": done.bytes,
        }
    )


@dg.op
def drop_slot_and_publication(context: dg.OpExecutionContext, pipeline: PipelineFile) -> None:
    """Leave nothing of ours on the source; the lake stays."""
    with told_to_dagster():
        opened = pipeline.open()
        done = attend(lambda: tearing_down.teardown(opened))
    context.add_output_metadata(
        {
            "slot": done.slot,
            "slot_dropped": done.slot_dropped,
            "publication": done.publication,
            "publication_dropped": done.publication_dropped,
        }
    )


class ReconcileConfig(dg.Config):
    """Run configuration of the job `reconcile`."""

    tables: list[str] = Field(
        default=[], description="namespace.name of the tables to compare; none: all of them."
    )
    timeout_seconds: float = Field(
        default=60.0, description="How long the log may take to reach the position compared."
    )


@dg.op
def compare_source_and_log(
    context: dg.OpExecutionContext, config: ReconcileConfig, pipeline: PipelineFile
) -> None:
    """Compare source and fold of the log at one position; fail when anything differs."""
    with told_to_dagster():
        opened, tables = pipeline.open(), config.tables or None
        found = attend(
            lambda: reconciling.reconcile(opened, tables, timeout_seconds=config.timeout_seconds)
        )
    compared = comparison(found)
    if not found.identical:
        error = NotReconciled([one.table for one in found.tables if not one.identical])
        raise dg.Failure(str(error), metadata(error) | compared, allow_retries=False) from error
    context.add_output_metadata(compared)


def comparison(found: Reconciliation) -> dict[str, Any]:
    """Counts per table, as a table in the UI."""
    counts = ("source_rows", "log_rows", "only_in_source_count", "only_in_log_count")
    records = [
        dg.TableRecord(
            {
                "table": one.table,
                "identical": one.identical,
                **{name: getattr(one.difference, name, 0) for name in counts},
                "differing_count": getattr(one.difference, "differing_count", 0),
                "reason": one.reason or "",
            }
        )
        for one in found.tables
    ]
    return {
        "comparison": dg.MetadataValue.table(records),
        "consistent_point": str(found.consistent_point),
    }


@dg.op(pool=INDEX_POOL)
def keep_indices_current(context: dg.OpExecutionContext, pipeline: PipelineFile) -> None:
    """Follow the log with every index until terminated; then the next run goes on from there."""
    with told_to_dagster():
        opened = pipeline.open()
        stop = threading.Event()
        teller = Teller(context, search.news, assets=max(1, len(opened.config.search)))
        attend(
            lambda: indexing.index(opened, stop=stop, report=teller.put),
            stop=stop,
            look=teller.look,
            look_seconds=LOOK_SECONDS,
        )


class AliasConfig(dg.Config):
    """Run configuration of the jobs `rollback` and `redrive`."""

    alias: str = Field(description="The alias, as the pipeline file names it under `search`.")


@dg.op
def move_alias_back(
    context: dg.OpExecutionContext, config: AliasConfig, pipeline: PipelineFile
) -> None:
    """Bring the newest kept index up to date, and move the alias back to it."""
    with told_to_dagster():
        opened, alias = pipeline.open(), config.alias
        done = attend(lambda: rolling_back.rollback(opened, alias))
    told = search.rolled_back(done)
    context.log_event(dg.AssetMaterialization(search.key_of(alias), metadata=told))
    context.add_output_metadata(told)


@dg.op
def send_refused_documents(
    context: dg.OpExecutionContext, config: AliasConfig, pipeline: PipelineFile
) -> None:
    """Send documents that were refused again, as their rows are now; fail when some still are."""
    with told_to_dagster():
        opened, alias = pipeline.open(), config.alias
        done = attend(lambda: redriving.redrive(opened, alias))
    told = {"index": done.index, "sent": done.sent, "refused": done.refused}
    if done.refused:
        said = f"{done.index} refused {done.refused:,} of {done.sent:,} documents again"
        remedy = "mend the rows or the mapping in pgstream.yaml; then 'pgstream reindex'"
        raise dg.Failure(f"{said}; {remedy}", {"remedy": remedy, **told}, allow_retries=False)
    context.add_output_metadata(told)


@dg.job(executor_def=dg.in_process_executor)
def setup() -> None:
    """Make publication and slot, and copy every table: all partitions of `snapshot` in one run."""
    make_slot_and_copy_tables()


@dg.job(executor_def=dg.in_process_executor)
def resnapshot() -> None:
    """Repair a slot that is lost, missing or ahead, or another source. Stop the stream first."""
    repair_slot_and_copy_tables()


@dg.job(executor_def=dg.in_process_executor)
def optimize() -> None:
    """Keep the log's files few and large; safe while the stream runs."""
    rewrite_small_files()


@dg.job(executor_def=dg.in_process_executor)
def reconcile() -> None:
    """Compare source and log row by row, value by value. A stream must run meanwhile."""
    compare_source_and_log()


@dg.job(executor_def=dg.in_process_executor)
def teardown() -> None:
    """Drop slot and publication from the source; changes are no longer captured."""
    drop_slot_and_publication()


@dg.job(executor_def=dg.in_process_executor, tags={STREAM_TAG: "search"})
def index() -> None:
    """Keep every index current until terminated, beside the stream. Events go to their assets."""
    keep_indices_current()


@dg.job(executor_def=dg.in_process_executor)
def rollback() -> None:
    """Move an alias back to the index it was on before, once that is up to date."""
    move_alias_back()


@dg.job(executor_def=dg.in_process_executor)
def redrive() -> None:
    """Send an alias's dead letters again."""
    send_refused_documents()


stream: Final = dg.define_asset_job(
    "stream",
    selection=[change_log],
    description="Land every committed change until terminated; `mode: drain` ends by itself.",
    tags={STREAM_TAG: "change_log"},
    executor_def=dg.in_process_executor,
)

snapshot: Final = dg.define_asset_job(
    "snapshot",
    selection=[snapshot_asset],
    description="Copy chosen tables again, one run per table, while the stream goes on.",
    executor_def=dg.in_process_executor,
)

JOBS: Final = [setup, stream, snapshot, resnapshot, optimize, reconcile, teardown]


def of_search(indices: Sequence[dg.AssetsDefinition]) -> list[Any]:  # Dagster names no type for it
    """The jobs on search indices; none where there is none, a `reindex` of nothing is no job."""
    if not indices:
        return []
    reindex = dg.define_asset_job(
        "reindex",
        selection=indices,
        description="Build every index anew from the log's beginning, one after the other, and"
        " move its alias; readers see the former one until then.",
        executor_def=dg.in_process_executor,
    )
    return [reindex, index, rollback, redrive]
