"""
The jobs: one operation of the engine each, under the name the command line has for it.

`snapshot`, `replay` and `reindex` materialize assets. The others act on the pipeline or an alias;
`stream` and `index` report the assets that they keep current. An op cannot have the name of a job,
so each op has the name of the function that it runs. Each run imports the engines that it uses.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import dagster as dg
from pydantic import Field

from pgstream_dagster.assets import search, sinks, tables
from pgstream_dagster.assets.errors import as_dagster_errors, metadata
from pgstream_dagster.assets.landing import StreamConfig, land_changes
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.replay import DAILY_CHANGES, REPLAY
from pgstream_dagster.assets.reporter import (
    POLL_SECONDS,
    OwnRun,
    ProgressReporter,
    outlasting,
    report_check,
)
from pgstream_dagster.assets.snapshot import SNAPSHOT, report_copies
from pgstream_dagster.errors import NotReconciled, PreflightFailed, TypedNotReconciled
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.threads import run_cancellable, run_in_thread

if TYPE_CHECKING:
    from pgstream_dagster.sinks.control import SinkStatus
    from pgstream_dagster.stop import Stop
    from pgstream_dagster.upkeep.reconcile import Reconciliation

STREAM_TAG: Final = "pgstream/stream"
"""On every run that a sensor keeps running; the value names pipeline and job."""

MERGE_TABLES: Final = "merge_tables"

TABLES_TAG: Final = "pgstream/tables"
"""On every run of `merge_tables`; the value names the pipeline."""

NO_LIMITS: Final = {"dagster/max_retries": "0", "dagster/max_runtime": "0"}
"""On runs that never end by themselves: an instance's retries would start a second run next to the
sensor's, and its limit on a run's duration would end the first."""

Context: TypeAlias = dg.OpExecutionContext


class AliasConfig(dg.Config):
    """Run configuration of the jobs `rollback` and `redrive`."""

    alias: str = Field(description="The alias, as the pipeline file names it under `search`.")


class ReconcileConfig(dg.Config):
    """Run configuration of the job `reconcile`."""

    tables: list[str] = Field(
        default=[], description="namespace.name of the tables to compare; none: all of them."
    )
    timeout_seconds: float = Field(
        default=60.0, description="How long the log may take to reach the position compared."
    )
    sink: str | None = Field(
        default=None, description="Compare the target of this Postgres sink, not the source."
    )
    typed_tables: bool = Field(
        default=False, description="Compare typed tables, too, at the same position."
    )


class RebuildConfig(dg.Config):
    """Run configuration of the job `rebuild_tables`."""

    tables: list[str] = Field(description="namespace.name of the tables of the source.")


class LongRunConfig(dg.Config):
    """Run configuration of the jobs `index` and `sinks`."""

    hours: float = Field(
        default=24.0, gt=0, description="How long the run lasts; the sensor launches the next."
    )


class SinkRunConfig(dg.Config):
    """Run configuration of the job `redrive_sink`."""

    sink: str = Field(description="The sink, as the pipeline file names it under `sinks`.")


class ReplayConfig(dg.Config):
    """Run configuration of the job `replay_sink`."""

    sink: str = Field(description="The sink, as the pipeline file names it under `sinks`.")
    start: str = Field(description="Where to begin: `start`, a position, or a time.")
    until: str = Field(default="now", description="Where to end: `now`, a position, or a time.")
    tables: list[str] = Field(default=[], description="Patterns of tables; none: all of them.")


def look_at_source(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Look at everything that `setup` needs; fail when anything of it is wrong."""
    from pgstream_dagster.source.preflight import Severity

    findings = names.file(context).source.check(pipeline)
    rows = [
        dg.TableRecord({"check": f.check, "severity": f.severity.value, "fact": str(f)})
        for f in findings
    ]
    facts = {"findings": dg.MetadataValue.table(rows)} if rows else {}
    if errors := [str(f) for f in findings if f.severity is Severity.ERROR]:
        raise dg.Failure(str(PreflightFailed(errors)), facts, allow_retries=False)
    context.add_output_metadata(facts)


def make_slot_and_copy_tables(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Make what is missing of publication, slot and watermark; copy every table without a copy."""
    report_copies(context, names, names.file(context).source.setup(pipeline))


def repair_slot_and_copy_tables(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Make a new slot, land the gap it leaves, copy every table."""
    report_copies(context, names, names.file(context).source.resnapshot(pipeline))


def drop_slot_and_publication(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Leave nothing of ours on the source; the lake stays."""
    done = names.file(context).source.teardown(pipeline)
    context.add_output_metadata(
        {
            "slot": done.slot,
            "slot_dropped": done.slot_dropped,
            "publication": done.publication,
            "publication_dropped": done.publication_dropped,
        }
    )


def rewrite_small_files(context: Context, _names: Names, pipeline: Pipeline) -> None:
    """Rewrite the log's small files into large ones, while it is written and read."""
    from pgstream_dagster.upkeep.optimize import optimize

    done = run_in_thread(lambda: optimize(pipeline))
    context.add_output_metadata(
        {
            "removed_files": done.removed_files,
            "added_files": done.added_files,
            "rows": done.rows,
            "bytes": done.bytes,
        }
    )


def compare_source_and_log(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Compare source, or a sink's target, and log at one position; fail when anything differs."""
    from pgstream_dagster.upkeep.reconcile import reconcile
    from pgstream_dagster.upkeep.reconcile_sink import reconcile_sink

    config = ReconcileConfig(**context.op_config)
    if config.typed_tables:
        compare_typed_tables(context, names, pipeline, config)
        return
    tables, seconds, sink = config.tables or None, config.timeout_seconds, config.sink

    def compare(stop: "Stop") -> "Reconciliation":
        if sink is not None:
            return reconcile_sink(pipeline, sink, tables, stop=stop)
        return reconcile(pipeline, tables, timeout_seconds=seconds, stop=stop)

    done = run_cancellable(compare)
    compared = comparison(done)
    if not done.identical:
        error = NotReconciled([table.table for table in done.tables if not table.identical])
        raise dg.Failure(str(error), metadata(error) | compared, allow_retries=False) from error
    context.add_output_metadata(compared)


def compare_typed_tables(
    context: Context, names: Names, pipeline: Pipeline, config: ReconcileConfig
) -> None:
    """Compare source, log and typed tables; report the check of each; fail if any differs."""
    from pgstream_dagster.upkeep.reconcile_tables import reconcile_tables

    if config.sink is not None:
        raise dg.Failure("compare a sink, or typed tables, not both", allow_retries=False)
    chosen, seconds = config.tables or None, config.timeout_seconds
    done = run_cancellable(
        lambda stop: reconcile_tables(pipeline, chosen, timeout_seconds=seconds, stop=stop)
    )
    for table in done.tables:
        key, outcome = tables.key_of(names, table.name), tables.equality(table, done.position)
        report_check(context, key, tables.EQUALS_SOURCE, **outcome)
    facts = tables.comparison(done)
    if not done.identical:
        error = TypedNotReconciled([table.table for table in done.tables if not table.identical])
        raise dg.Failure(str(error), metadata(error) | facts, allow_retries=False) from error
    context.add_output_metadata(facts)


def write_tables_again(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Write typed tables again from the start of the log, and bring all others up to date."""
    config = RebuildConfig(**context.op_config)
    done, status = tables.merge(context, pipeline, config.tables)
    for event in tables.events(context, names, done, status):
        context.log_event(event)
    context.add_output_metadata(tables.pass_metadata(done, status))
    done.require_all()


COUNTS: Final = (
    *("source_rows", "log_rows", "only_in_source_count", "only_in_log_count"),
    "differing_count",
)


def comparison(done: "Reconciliation") -> dict[str, Any]:
    """Counts per table, as a table in the UI."""
    rows = [
        dg.TableRecord(
            {
                "table": table.table,
                "identical": table.identical,
                **{name: getattr(table.difference, name, 0) for name in COUNTS},
                "reason": table.reason or "",
            }
        )
        for table in done.tables
    ]
    return {
        "comparison": dg.MetadataValue.table(rows),
        **position("consistent_point", done.consistent_point),
    }


def keep_indices_current(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Follow the log with every index until terminated; then the next run continues from there."""
    from pgstream_dagster.search.builds import BuildProcess
    from pgstream_dagster.search.index import index

    reports, assets = partial(search.progress_reports, names), len(pipeline.config.search)
    reporter = ProgressReporter(context, reports, assets=max(1, assets))
    work = partial(index, pipeline, report=reporter.put, build=BuildProcess().build)
    _run_until_terminated(context, reporter, work)


def deliver_to_sinks(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Deliver to every sink until terminated; then the next run continues from there."""
    from pgstream_dagster.sinks.run import run as deliver

    reports, assets = partial(sinks.progress_reports, names, pipeline), len(pipeline.config.sinks)
    reporter = ProgressReporter(context, reports, assets=max(1, assets))
    _run_until_terminated(context, reporter, partial(deliver, pipeline, report=reporter.put))


def _run_until_terminated(
    context: Context, reporter: ProgressReporter[Any], work: Callable[..., object]
) -> None:
    """Run `work(stop=...)` until the run is terminated or its hours are over."""
    stop, hours = threading.Event(), LongRunConfig(**context.op_config).hours
    run_in_thread(
        lambda: work(stop=stop),
        stop=stop,
        poll=outlasting(OwnRun(context, stop, hours).poll, reporter.poll),
        poll_seconds=POLL_SECONDS,
    )


def deliver_dead_letters(context: Context, _names: Names, pipeline: Pipeline) -> None:
    """Deliver the dead letters of a sink again, in order; fail when some are refused again."""
    from pgstream_dagster.sinks.control import redrive

    sink = SinkRunConfig(**context.op_config).sink
    done = run_cancellable(lambda stop: redrive(pipeline, sink, stop=stop))
    _require_delivered(context, done)


def deliver_once_more(context: Context, _names: Names, pipeline: Pipeline) -> None:
    """Deliver a part of the log to a sink once more; fail when some of it is refused."""
    from pgstream_dagster.sinks.control import replay

    config = ReplayConfig(**context.op_config)
    tables = tuple(config.tables)
    part = (config.sink, config.start, config.until, tables)
    done = run_cancellable(lambda stop: replay(pipeline, *part, stop=stop))
    _require_delivered(context, done)


def _require_delivered(context: Context, readers: "Sequence[SinkStatus]") -> None:
    refused, held = sum(r.refused for r in readers), sum(r.held for r in readers)
    facts = {"refused": refused, "held": held}
    if refused:
        fact = f"the target refuses {refused:,} changes"
        remedy = "'pgstream sink letters' shows them; remove the cause, then launch 'redrive_sink'"
        raise dg.Failure(f"{fact}; {remedy}", {"remedy": remedy, **facts}, allow_retries=False)
    context.add_output_metadata(facts)


def maintain_events(context: Context, _names: Names, pipeline: Pipeline) -> None:
    """Make partitions of the days ahead, drop old days; fail when a day cannot go as it should."""
    from pgstream_dagster.upkeep.maintain_outbox import maintain_outbox

    done = run_in_thread(lambda: maintain_outbox(pipeline))
    facts = {
        "created": ", ".join(map(str, done.created)),
        "moved_rows": done.moved_rows,
        "dropped": ", ".join(map(str, done.dropped)),
        "postponed": "; ".join(done.postponed),
        "alerts": "; ".join(done.alerts),
    }
    if done.alerts:
        raise dg.Failure("; ".join(done.alerts), facts, allow_retries=False)
    context.add_output_metadata(facts)


def move_alias_back(context: Context, names: Names, pipeline: Pipeline) -> None:
    """Bring the newest kept index up to date, and move the alias back to it."""
    from pgstream_dagster.search.rollback import rollback

    alias = AliasConfig(**context.op_config).alias
    done = run_in_thread(lambda: rollback(pipeline, alias))
    facts = search.index_position(done.index, done.delivered, replaced=done.replaced)
    context.log_event(dg.AssetMaterialization(search.key_of(names, alias), metadata=facts))
    context.add_output_metadata(facts)


def send_refused_documents(context: Context, _names: Names, pipeline: Pipeline) -> None:
    """Send documents that were refused again, as their rows are now; fail when some still are."""
    from pgstream_dagster.search.redrive import redrive

    alias = AliasConfig(**context.op_config).alias
    done = run_in_thread(lambda: redrive(pipeline, alias))
    facts = {"index": done.index, "sent": done.sent, "refused": done.refused}
    if done.refused:
        fact = f"{done.index} refused {done.refused:,} of {done.sent:,} documents again"
        remedy = "fix the rows or the mapping in pgstream.yaml; then 'pgstream reindex'"
        raise dg.Failure(f"{fact}; {remedy}", {"remedy": remedy, **facts}, allow_retries=False)
    context.add_output_metadata(facts)


Work: TypeAlias = Callable[[Context, Names, Pipeline], None]


def _job(
    names: Names,
    executor: dg.ExecutorDefinition,
    name: str,
    work: Work,
    description: str,
    *,
    config: type[dg.Config] | None = None,
    is_kept: bool = False,
) -> dg.JobDefinition:
    """
    One operation as a job of one op.

    A job that a sensor keeps running (`is_kept`) has a pool of its own: a second run of it waits in
    the queue, not for the slot or for leases.
    """
    pool = names.in_instance(name) if is_kept else None
    tags = {STREAM_TAG: pool, **NO_LIMITS} if pool else None

    @dg.op(
        name=names.prefixed(work.__name__),
        description=work.__doc__,
        required_resource_keys=names.resources,
        config_schema=None if config is None else cast("Any", config.to_config_schema()),
        pool=pool,
        out=dg.Out(dg.Nothing),
    )
    def run(context: dg.OpExecutionContext) -> None:
        with as_dagster_errors():
            work(context, names, names.open(context))

    @dg.job(name=names.prefixed(name), description=description, tags=tags, executor_def=executor)
    def job() -> None:
        run()

    return job


def of_pipeline(
    names: Names, executor: dg.ExecutorDefinition, checks: Sequence[dg.AssetChecksDefinition]
) -> list[Any]:  # Dagster names no type for jobs of both kinds
    """The jobs that every pipeline has."""
    check = dg.define_asset_job(
        names.prefixed("check"),
        selection=dg.AssetSelection.checks(*checks),
        description="Evaluate every check of log, copies and live indices; changes nothing.",
        executor_def=executor,
    )
    job = partial(_job, names, executor)
    stream = job(
        "stream",
        land_changes,
        "Land every committed change until terminated; `mode: drain` ends by itself. Events go"
        " to the asset `change_log`.",
        config=StreamConfig,
        is_kept=True,
    )
    look = job(
        "check_source",
        look_at_source,
        "Look at everything that `setup` needs: source, folders, search cluster. Changes nothing.",
    )
    setup = job(
        "setup",
        make_slot_and_copy_tables,
        "Make the tables of the lake; of a Postgres source also publication and slot, and copy"
        " every table: all partitions of `snapshot` in one run.",
    )
    optimize = job(
        "optimize",
        rewrite_small_files,
        "Keep the log's files few and large; safe while the stream runs.",
    )
    return [check, stream, look, setup, optimize]


def of_postgres(names: Names, executor: dg.ExecutorDefinition) -> list[Any]:
    """The jobs of a pipeline whose source is Postgres."""
    snapshot = dg.define_asset_job(
        names.prefixed(SNAPSHOT),
        selection=dg.AssetSelection.assets(names.key(SNAPSHOT)).without_checks(),
        description="Copy chosen tables again, one run per table, while the stream continues.",
        executor_def=executor,
    )
    replay = dg.define_asset_job(
        names.prefixed(REPLAY),
        selection=[names.key(DAILY_CHANGES)],
        description="Rebuild days of the table of daily changes from the log.",
        executor_def=executor,
    )
    job = partial(_job, names, executor)
    resnapshot = job(
        "resnapshot",
        repair_slot_and_copy_tables,
        "Repair a slot that is lost, missing or ahead, or another source. Terminate the stream"
        " first.",
    )
    reconcile = job(
        "reconcile",
        compare_source_and_log,
        "Compare source and log row by row, value by value. A stream must run meanwhile.",
        config=ReconcileConfig,
    )
    teardown = job(
        "teardown",
        drop_slot_and_publication,
        "Drop slot and publication from the source; changes are no longer captured.",
    )
    return [snapshot, replay, resnapshot, reconcile, teardown]


def of_search(
    names: Names,
    executor: dg.ExecutorDefinition,
    indices: Sequence[dg.AssetsDefinition],
    checks: Sequence[dg.AssetChecksDefinition],
) -> list[Any]:
    """The jobs on search indices; none without an index: a `reindex` needs an asset."""
    if not indices:
        return []
    reindex = dg.define_asset_job(
        names.prefixed("reindex"),
        selection=dg.AssetSelection.assets(*indices) - dg.AssetSelection.checks(*checks),
        description="Build every index again from the start of the log, one after the other, and"
        " move its alias; readers see the previous index until then.",
        executor_def=executor,
    )
    job = partial(_job, names, executor)
    index = job(
        "index",
        keep_indices_current,
        "Keep every index current until terminated, while the stream runs. Events go to their"
        " assets.",
        config=LongRunConfig,
        is_kept=True,
    )
    rollback = job(
        "rollback",
        move_alias_back,
        "Move an alias back to the index it was on before, once that is up to date.",
        config=AliasConfig,
    )
    redrive = job(
        "redrive",
        send_refused_documents,
        "Send an alias's dead letters again.",
        config=AliasConfig,
    )
    return [reindex, index, rollback, redrive]


def of_sinks(names: Names, executor: dg.ExecutorDefinition) -> list[dg.JobDefinition]:
    """The jobs on sinks."""
    job = partial(_job, names, executor)
    return [
        job(
            "sinks",
            deliver_to_sinks,
            "Deliver to every sink until terminated. Events go to their assets.",
            config=LongRunConfig,
            is_kept=True,
        ),
        job(
            "redrive_sink",
            deliver_dead_letters,
            "Deliver a sink's dead letters again, in order.",
            config=SinkRunConfig,
        ),
        job(
            "replay_sink",
            deliver_once_more,
            "Deliver a part of the log to a sink once more; its position stays.",
            config=ReplayConfig,
        ),
    ]


def of_outbox(names: Names, executor: dg.ExecutorDefinition) -> list[dg.JobDefinition]:
    """The job on the outbox."""
    return [
        _job(
            names,
            executor,
            "outbox_maintenance",
            maintain_events,
            "Make the partitions of the outbox for the days ahead, and drop those that are old and"
            " delivered.",
        )
    ]


def of_tables(
    names: Names, executor: dg.ExecutorDefinition, typed_tables: Sequence[str]
) -> list[Any]:
    """The jobs on typed tables."""
    keys = [
        names.key(tables.TYPED_TABLES),
        *(tables.key_of(names, table) for table in typed_tables),
    ]
    merge = dg.define_asset_job(
        names.prefixed(MERGE_TABLES),
        selection=dg.AssetSelection.assets(*keys).without_checks(),
        description="Bring every typed table to the log's position, once, and report those that"
        " have changed.",
        tags={TABLES_TAG: names.in_instance(tables.POOL)},
        executor_def=executor,
    )
    rebuild = _job(
        *(names, executor, "rebuild_tables", write_tables_again),
        "Write typed tables again from the start of the log; readers see the rows of before until"
        " each is replaced in one commit.",
        config=RebuildConfig,
    )
    return [merge, rebuild]
