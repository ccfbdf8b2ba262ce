"""
The asset checks: the state of slot, log, copies, live indices and sinks.

`slot_health` queries Postgres alone; the stream itself also reports it every few minutes, and
reports `tables_fit` whenever its outcome changes. The others read the log when they are run. That a
new index equals the fold is checked by every re-index before its alias moves (`assets.search`): one
that differs never serves. The check here is whether the index that serves still does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, TypeAlias

import dagster as dg

from pgstream_dagster.assets import sinks, tables
from pgstream_dagster.assets.errors import as_dagster_errors
from pgstream_dagster.assets.health import SLOT_HEALTH, TABLES_FIT, slot_outcome, tables_outcome
from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.search import key_of, op_names
from pgstream_dagster.assets.snapshot import SNAPSHOT
from pgstream_dagster.errors import WatermarkBehind
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.threads import run_in_thread
from pgstream_dagster.upkeep.health import slot_state

ERROR = dg.AssetCheckSeverity.ERROR
WARN = dg.AssetCheckSeverity.WARN

LIVE_EQUALS_FOLD: Final = "live_index_equals_fold"


def of_pipeline(names: Names) -> list[dg.AssetChecksDefinition]:
    """The check that every pipeline has."""
    return [
        _check(
            names,
            names.key(CHANGE_LOG),
            "positions_without_gap",
            "Every position of the log is there once, and none lies past the watermark.",
            _positions,
        )
    ]


def of_postgres(names: Names) -> list[dg.AssetChecksDefinition]:
    """The checks of a pipeline whose source is Postgres."""
    log, copies = names.key(CHANGE_LOG), names.key(SNAPSHOT)
    return [
        _check(names, log, SLOT_HEALTH, "The slot is there, read, and keeps its WAL.", _slot),
        _check(
            names,
            log,
            TABLES_FIT,
            "Every table can be captured whole, and its UPDATEs and DELETEs work.",
            _tables_fit,
        ),
        _check(
            names,
            copies,
            "copies_complete",
            "Every published table has a copy, and none waits for another.",
            _copies,
        ),
    ]


def of_search(names: Names, aliases: Iterable[str]) -> list[dg.AssetChecksDefinition]:
    """The check of every live index."""
    return [
        _check(
            names,
            key_of(names, alias),
            LIVE_EQUALS_FOLD,
            "The index behind the alias says what the log says, document by document, while both"
            " continue.",
            partial(_index, alias=alias),
            op_name=names.prefixed(f"{op}__{LIVE_EQUALS_FOLD}"),
        )
        for alias, op in op_names(aliases).items()
    ]


Work: TypeAlias = Callable[[Pipeline], dg.AssetCheckResult]


def of_sinks(names: Names, targets: Iterable[str]) -> list[dg.AssetChecksDefinition]:
    """The checks of each sink."""
    targets = list(targets)
    ops = op_names(targets, sinks.PREFIX)
    every: list[tuple[str, str, Callable[..., dg.AssetCheckResult]]] = [
        (
            sinks.DELIVERED,
            "The sink has no dead letters, and nothing keeps it from delivering.",
            _sink,
        ),
        (sinks.KEEPS_UP, "The sink is at most ten minutes behind the log.", _sink_lag),
    ]
    return [
        _check(
            *(names, sinks.key_of(names, sink), check, description),
            partial(work, sink=sink),
            names.prefixed(f"{ops[sink]}__{check}"),
        )
        for sink in targets
        for check, description, work in every
    ]


def of_tables(names: Names, typed_tables: Sequence[str]) -> list[dg.AssetChecksDefinition]:
    """The check that each typed table keeps up with the log, all in one step."""
    return _of_each_table(
        names,
        typed_tables,
        tables.KEEPS_UP,
        "The typed table is at most fifteen minutes behind the log, and waits for no copy.",
        _tables_keep_up,
    )


def of_typed_rows(names: Names, typed_tables: Sequence[str]) -> list[dg.AssetChecksDefinition]:
    """
    The check that each typed table equals the source, all in one step.

    Not one of the job `check`: it reads whole tables, and a stream has to run meanwhile.
    """
    return _of_each_table(
        names,
        typed_tables,
        tables.EQUALS_SOURCE,
        "Source, fold of the log and typed table are equal at one position, value by value. A"
        " stream must run meanwhile.",
        _tables_equal_source,
    )


Outcomes: TypeAlias = Callable[[Pipeline, Sequence[str]], dict[str, dict[str, Any]]]
"""Of typed tables, by name: the outcome of a check; of those that it can say anything of."""


def _of_each_table(
    names: Names, typed_tables: Sequence[str], check: str, description: str, work: Outcomes
) -> list[dg.AssetChecksDefinition]:
    """One step with a check of each table, any of which may be selected."""
    keys = {tables.key_of(names, table): table for table in typed_tables}
    if not keys:
        return []

    @dg.multi_asset_check(
        name=names.prefixed(f"tables__{check}"),
        specs=[dg.AssetCheckSpec(check, asset=key, description=description) for key in keys],
        can_subset=True,
        required_resource_keys=names.resources,
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        selected = {
            keys[check_key.asset_key]: check_key.asset_key
            for check_key in context.selected_asset_check_keys
        }
        with as_dagster_errors():
            pipeline = names.open(context)
            outcomes = run_in_thread(lambda: work(pipeline, list(selected)))
        for table, key in selected.items():
            outcome = outcomes.get(table, tables.NO_TABLE)
            yield dg.AssetCheckResult(asset_key=key, check_name=check, **outcome)

    return [evaluate]


def _tables_keep_up(pipeline: Pipeline, selected: Sequence[str]) -> dict[str, dict[str, Any]]:
    from pgstream_dagster.tables.status import typed_status

    status = typed_status(pipeline)
    chosen = [table for table in status.tables if table.name in selected]
    return {table.name: tables.outcome(table, status) for table in chosen}


def _tables_equal_source(pipeline: Pipeline, selected: Sequence[str]) -> dict[str, dict[str, Any]]:
    from pgstream_dagster.tables.status import typed_status
    from pgstream_dagster.upkeep.reconcile_tables import reconcile_tables

    chosen = {t.name: t.table for t in typed_status(pipeline).tables if t.name in selected}
    try:
        done = reconcile_tables(pipeline, list(chosen.values()))
    except WatermarkBehind as error:  # no stream runs: Dagster evaluates checks when it likes
        outcome = {"passed": False, "severity": WARN, "description": f"not compared: {error}"}
        return dict.fromkeys(chosen, outcome)
    return {t.name: tables.equality(t, done.position) for t in done.tables}


def _check(
    names: Names,
    asset: dg.AssetKey,
    name: str,
    description: str,
    work: Work,
    op_name: str | None = None,
) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=op_name or f"{asset.to_python_identifier()}_{name}",
        specs=[dg.AssetCheckSpec(name, asset=asset, description=description)],
        required_resource_keys=names.resources,
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with as_dagster_errors():
            pipeline = names.open(context)
            return run_in_thread(lambda: work(pipeline))

    return evaluate


def _slot(pipeline: Pipeline) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(**slot_outcome(slot_state(pipeline)))


def _positions(pipeline: Pipeline) -> dg.AssetCheckResult:
    from pgstream_dagster.upkeep.log_checks import positions

    counted = positions(pipeline)
    facts = asdict(counted) | position("watermark", counted.watermark)
    return dg.AssetCheckResult(passed=counted.sound, severity=ERROR, metadata=facts)


def _tables_fit(pipeline: Pipeline) -> dg.AssetCheckResult:
    from pgstream_dagster.upkeep.log_checks import unfit_tables

    return dg.AssetCheckResult(**tables_outcome(unfit_tables(pipeline)))


def _copies(pipeline: Pipeline) -> dg.AssetCheckResult:
    from pgstream_dagster.upkeep.log_checks import due_copies

    due = due_copies(pipeline)
    rows = [dg.TableRecord({"table": table, "why": why}) for table, why in due.items()]
    return dg.AssetCheckResult(
        passed=not due,
        severity=WARN,
        description=f"{len(due)} table(s) wait for a copy; the stream makes it" if due else None,
        metadata={"due": dg.MetadataValue.table(rows)} if rows else {},
    )


def _index(pipeline: Pipeline, alias: str) -> dg.AssetCheckResult:
    from pgstream_dagster.search.compare import compare

    compared = compare(pipeline, alias)
    difference = compared.difference
    if difference is None:
        why = f"not compared: {compared.reason}"
        return dg.AssetCheckResult(passed=False, severity=WARN, description=why)
    facts = {
        "index": compared.index or "",
        **position("at", compared.at),
        "compared": difference.rows,
        "differing": difference.differences,
        "sample": ", ".join(difference.sample),
    }
    remedy = f"build it again: launch 'reindex' of {alias}" if difference.differences else None
    return dg.AssetCheckResult(
        passed=difference.identical, severity=ERROR, description=remedy, metadata=facts
    )


def _sink(pipeline: Pipeline, sink: str) -> dg.AssetCheckResult:
    readers = sinks.readers_of(pipeline, sink)
    refused, held = sum(s.refused for s in readers), sum(s.held for s in readers)
    errors = [s.error for s in readers if s.error]
    remedy = f"remove the cause, then launch 'redrive_sink' of {sink}" if refused else None
    return dg.AssetCheckResult(
        passed=not (refused or held or errors),
        severity=WARN,
        description="; ".join(errors) or remedy,
        metadata={"refused": refused, "held": held, **sinks.lag(readers)},
    )


def _sink_lag(pipeline: Pipeline, sink: str) -> dg.AssetCheckResult:
    readers = sinks.readers_of(pipeline, sink)
    lag = sinks.lag(readers)
    is_late = lag["lag_seconds"] > sinks.LAG_SECONDS
    stopped = [reader.sink for reader in readers if not reader.is_running]
    remedy = (
        f"start the job 'sinks': nothing delivers for {', '.join(stopped)}" if stopped else None
    )
    return dg.AssetCheckResult(
        passed=not is_late,
        severity=WARN,
        description=remedy if is_late else None,
        metadata=lag,
    )
