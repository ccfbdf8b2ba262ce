"""
Typed tables as assets: one per typed table, and one of the pass that makes all of them.

One run brings every table to the log's position, whichever are selected: a pass reads the log once
for all. It reports the tables that differ from what Dagster has of them, by the version of their
content, so it also reports what another process (`pgstream tables run`) or a killed run has done.
"""

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from pgstream_dagster.assets.columns import SCHEMA, location
from pgstream_dagster.assets.errors import as_dagster_errors
from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.reporter import POLL_SECONDS, require_started
from pgstream_dagster.assets.source import SOURCE
from pgstream_dagster.assets.throttle import FRESHNESS, QUIET_SECONDS
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.threads import run_in_thread

if TYPE_CHECKING:
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.tables.passes import Merged, MergedTable
    from pgstream_dagster.tables.status import TypedStatus, TypedTableStatus
    from pgstream_dagster.upkeep.reconcile_tables import (
        TypedReconciliation,
        TypedReconciliations,
    )

TYPED_TABLES: Final = "typed_tables"
"""The asset of the pass."""

PREFIX: Final = "tables"

POOL: Final = "tables"
"""One run at a time: a second one would only wait for the first, with a JVM of its own."""

VERSION: Final = "version"
"""Metadata of a table: differs when its rows or columns do."""

LINEAGE: Final = "dagster/column_lineage"
"""The metadata that the UI shows as where columns come from."""

IMAGE: Final = "after"
"""The column of the log that the values of rows come from."""

KEEPS_UP: Final = "keeps_up"
"""The check of every table: it is not far behind the log, and waits for no copy."""

EQUALS_SOURCE: Final = "typed_table_equals_source"
"""The check of every table: source, fold of the log and typed table are equal."""

LAG_SECONDS: Final = 900.0
"""Behind the log, after which a table is reported: two passes of the schedule have not ended."""


def key_of(names: Names, table: str) -> dg.AssetKey:
    """The key of a typed table's asset; `table` is the name of the typed table, its folder."""
    return names.key(*_path(table))


def _path(table: str) -> list[str]:
    """In characters of which Dagster can make the names of inputs, distinct ones."""
    namespace, _, relation = table.partition(".")
    return [PREFIX, *map(_plain, filter(None, (namespace, relation)))]


def _plain(part: str) -> str:
    """Of a folder's name: other characters than letters, digits, `_` become their numbers."""
    return _OTHER.sub(lambda match: f"_{ord(match[0]):x}", part.replace("~", "_"))


_OTHER: Final = re.compile(r"[^A-Za-z0-9_]")


def table_assets(names: Names, tables: Sequence[str]) -> dg.AssetsDefinition:
    """The assets of these typed tables, and of the pass, from one step."""
    specs = [_pass_spec(names), *(_table_spec(names, table) for table in tables)]
    outputs = ["all_tables", *map(_output, tables)]
    outs = {
        output: dg.AssetOut.from_spec(spec.replace_attributes(deps=[]), is_required=False)
        for output, spec in zip(outputs, specs, strict=True)
    }
    deps = {dep.asset_key: dep for spec in specs for dep in spec.deps}

    @dg.multi_asset(
        name=names.prefixed("merge_typed_tables"),  # an op may not have the name of a job
        outs=outs,
        deps=list(deps.values()),
        can_subset=True,
        pool=names.in_instance(POOL),
        required_resource_keys=names.resources,
    )
    def merged(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        """Bring every typed table to the log's position; report those that are new to Dagster."""
        with as_dagster_errors():
            pipeline = names.open(context)
            done, status = merge(context, pipeline)
        selected = context.selected_asset_keys
        for event in events(context, names, done, status):
            if event.asset_key in selected:
                yield dg.MaterializeResult(asset_key=event.asset_key, metadata=event.metadata)
            else:
                context.log_event(event)
        with as_dagster_errors():
            done.require_all()

    return merged


def _output(table: str) -> str:
    """The name of the output of a table: in the few characters of Dagster, for each another."""
    return "table_" + re.sub(r"[^A-Za-z0-9]", lambda match: f"_{ord(match[0]):x}_", table)


def _pass_spec(names: Names) -> dg.AssetSpec:
    return names.spec(
        TYPED_TABLES,
        deps=[names.key(CHANGE_LOG)],
        group_name=PREFIX,
        kinds={"deltalake"},
        freshness_policy=FRESHNESS,
        description="All typed tables at one position of the log. Also reported for a table that"
        " has no asset until the code location is reloaded.",
    )


def _table_spec(names: Names, table: str) -> dg.AssetSpec:
    return names.spec(
        *_path(table),
        deps=[names.key(CHANGE_LOG)],
        group_name=PREFIX,
        kinds={"deltalake"},
        freshness_policy=FRESHNESS,
        description=f"The typed table {table}: the current rows of its table of the source, with a"
        " column of the right type for each column there.",
    )


def merge(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    pipeline: "Pipeline",
    rebuild: Sequence[str] = (),
) -> tuple["Merged", "TypedStatus"]:
    """One pass in a thread of its own, and the tables afterwards; a run that ends stops it."""
    from pgstream_dagster.tables.merge import merge_tables
    from pgstream_dagster.tables.status import typed_status

    stop = threading.Event()

    def work() -> "tuple[Merged, TypedStatus]":
        done = merge_tables(pipeline, rebuild=rebuild, stop=stop)
        return done, typed_status(pipeline)

    return run_in_thread(work, stop=stop, poll=lambda: _poll(context), poll_seconds=POLL_SECONDS)


def _poll(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> None:
    """Raises `Failure` when this run was ended in Dagster."""
    require_started(context)


@dataclass(frozen=True, slots=True)
class Reported:
    """What Dagster has of a table: its version, and when it was reported."""

    version: str
    at: float


def is_due(reported: Reported | None, version: str, now: float) -> bool:
    """Whether a table is to be reported: Dagster has another version, or only an old event."""
    if reported is None or reported.version != version:
        return True
    return now - reported.at >= QUIET_SECONDS


def events(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    names: Names,
    done: "Merged",
    status: "TypedStatus",
) -> Iterator[dg.AssetMaterialization]:
    """The events of a pass: of tables that are due or were asked for, and of the pass itself."""
    made = [table for table in status.tables if table.version]
    keys = {table.name: key_of(names, table.name) for table in made}
    pass_key, now = names.key(TYPED_TABLES), time.time()
    reported = _reported(context.instance, [pass_key, *keys.values()])
    asked = context.run.asset_selection or frozenset()
    steps = {table.name: table for table in done.tables}
    due = [
        table
        for table in made
        if table.name in steps
        or keys[table.name] in asked
        or is_due(reported.get(keys[table.name]), table.version, now)
    ]
    for table in due:
        facts = metadata(names, table, status, steps.get(table.name))
        yield dg.AssetMaterialization(keys[table.name], metadata=facts)
    version = str(len(status.tables))
    if due or pass_key in asked or is_due(reported.get(pass_key), version, now):
        facts = pass_metadata(done, status) | {VERSION: version}
        yield dg.AssetMaterialization(pass_key, metadata=facts)


def _reported(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, Reported]:
    reported = dict[dg.AssetKey, Reported]()
    for record in instance.get_asset_records(keys):
        entry = record.asset_entry.last_materialization
        event = None if entry is None else entry.asset_materialization
        if entry is not None and event is not None:
            version = event.metadata.get(VERSION)
            text = str(version.value) if version is not None else ""
            reported[record.asset_entry.asset_key] = Reported(text, entry.timestamp)
    return reported


def metadata(
    names: Names,
    table: "TypedTableStatus",
    status: "TypedStatus",
    step: "MergedTable | None" = None,
) -> dict[str, Any]:
    """Where a table is, its rows and columns, how far it is, and what this run did to it."""
    columns = [
        dg.TableColumn(
            column.name, column.type, description="part of the key" if column.in_key else None
        )
        for column in table.columns
    ]
    made = {} if step is None else {"step": step.step.value, "changes": step.changes}
    return {
        **location(table.uri),
        "dagster/row_count": table.rows,
        SCHEMA: dg.TableSchema(columns),
        LINEAGE: lineage(names, table),
        **position("position", table.position or table.changed_at or Lsn(0)),
        **lag(status),
        "state": table.state.value,
        VERSION: table.version,
        "seconds": table.seconds,
        **made,
    }


def lineage(names: Names, table: "TypedTableStatus") -> dg.TableColumnLineage:
    """Of each column: the column of the source, and that of the log that has its values."""
    from pgstream_dagster.tables.status import LOG_COLUMNS

    log, source = names.key(CHANGE_LOG), names.key(SOURCE)
    deps: dict[str, Sequence[dg.TableColumnDep]] = {}
    for column in table.columns:
        of_log = dg.TableColumnDep(log, LOG_COLUMNS.get(column.name, IMAGE))
        of_source = (
            []
            if column.source is None
            else [dg.TableColumnDep(source, f"{table.table}.{column.source}")]
        )
        deps[column.name] = [of_log, *of_source]
    return dg.TableColumnLineage(deps)


def pass_metadata(done: "Merged", status: "TypedStatus") -> dict[str, Any]:
    """How far all tables are, and how many of them this run has changed."""
    waiting = [table.name for table in status.tables if table.state.value == "waiting"]
    return {
        **position("position", done.position),
        **lag(status),
        "tables": len(status.tables),
        "changed_tables": len(done.tables),
        "changes": sum(table.changes for table in done.tables),
        "waiting_for_a_copy": ", ".join(waiting),
    }


def lag(status: "TypedStatus") -> Mapping[str, Any]:
    """How far the tables are behind the log, as numbers for plots."""
    seconds = {} if status.lag_seconds is None else {"lag_seconds": status.lag_seconds}
    return {"lag_bytes": status.lag_bytes, **seconds}


def outcome(table: "TypedTableStatus", status: "TypedStatus") -> dict[str, Any]:
    """The outcome of the check `keeps_up` of a table."""
    problem = None
    if table.state.value == "waiting":
        problem = "changes are missing in the log: it waits for the next copy of its table"
    elif table.state.value == "held":
        problem = "changes of its columns wait: 'pgstream tables pending' shows them"
    elif table.state.value == "missing":
        problem = "it has not been made yet: launch 'merge_tables'"
    elif status.lag_bytes and (status.lag_seconds is None or status.lag_seconds > LAG_SECONDS):
        problem = "it is far behind the log: launch 'merge_tables', or turn its schedule on"
    return {
        "passed": problem is None,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": problem,
        "metadata": {**lag(status), "state": table.state.value},
    }


NO_TABLE: Final[Mapping[str, Any]] = {
    "passed": False,
    "severity": dg.AssetCheckSeverity.WARN,
    "description": "the pipeline has no table for it any more: remove its folder in the lake",
}
"""The outcome of a check of a table that is only in the lake."""


def equality(table: "TypedReconciliation", at: Lsn) -> dict[str, Any]:
    """The outcome of the check `typed_table_equals_source` of a table."""
    remedy = f"launch 'rebuild_tables' of {table.table}"
    is_source = table.source is not None and not table.source.identical
    if table.reason is not None:
        description = f"not compared: {table.reason}"
    elif is_source:
        description = f"the log differs from the source: copy it again with 'snapshot'; {remedy}"
    else:
        description = None if table.identical else remedy
    is_compared = table.reason is None
    return {
        "passed": table.identical,
        "severity": dg.AssetCheckSeverity.ERROR if is_compared else dg.AssetCheckSeverity.WARN,
        "description": description,
        "metadata": {**position("position", at), **_differences(table)},
    }


def _differences(table: "TypedReconciliation") -> dict[str, Any]:
    """Rows of each side, rows that differ, and the first keys of these."""
    facts: dict[str, Any] = {}
    if table.source is not None:
        facts |= {"source_rows": table.source.source_rows, "log_rows": table.source.log_rows}
        facts["source_differs"] = table.source.count
    if table.typed is not None:
        facts |= {"typed_rows": table.typed.source_rows, "typed_differs": table.typed.count}
        facts["sample"] = ", ".join(map(str, table.typed.sample))
    return facts


def comparison(done: "TypedReconciliations") -> dict[str, Any]:
    """Counts per table, as a table in the UI."""
    names = ("source_rows", "log_rows", "typed_rows", "source_differs", "typed_differs")
    rows = [
        dg.TableRecord(
            {
                "table": table.table,
                "identical": table.identical,
                **{name: _differences(table).get(name, 0) for name in names},
                "reason": table.reason or "",
            }
        )
        for table in done.tables
    ]
    return {"comparison": dg.MetadataValue.table(rows), **position("position", done.position)}
