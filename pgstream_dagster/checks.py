"""
The asset checks: what a person would look at in the morning, and what a wrong answer would cost.

`slot_health` asks Postgres alone and is told by the stream itself every few minutes, too.
The others read the log when somebody asks. That an index equals the fold is checked by every
re-index before its alias moves (`assets.search`): one that differs never serves.
"""

from collections.abc import Callable
from typing import Any

import dagster as dg

from pgstream_dagster.assets.errors import told_to_dagster
from pgstream_dagster.assets.health import SLOT_HEALTH, severity, slot_metadata
from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.snapshot import SNAPSHOT
from pgstream_dagster.operations import checkup
from pgstream_dagster.operations.attend import attend
from pgstream_dagster.operations.health import finding, slot_state
from pgstream_dagster.operations.pipeline import Pipeline

ERROR = dg.AssetCheckSeverity.ERROR
WARN = dg.AssetCheckSeverity.WARN


def of_pipeline(names: Names) -> list[dg.AssetChecksDefinition]:
    """The checks that every pipeline has."""
    log, copies = names.key(CHANGE_LOG), names.key(SNAPSHOT)
    return [
        _check(names, log, SLOT_HEALTH, "The slot is there, read, and keeps its WAL.", _slot),
        _check(
            names,
            log,
            "positions_without_gap",
            "Every position of the log is there once, and none lies past the watermark.",
            _positions,
        ),
        _check(
            names,
            copies,
            "copies_complete",
            "Every published table has a copy, and none waits for another.",
            _copies,
        ),
    ]


Work = Callable[[Pipeline], dg.AssetCheckResult]


def _check(
    names: Names, asset: dg.AssetKey, name: str, description: str, work: Work
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset,
        name=name,
        description=description,
        required_resource_keys=names.resources,
    )
    def made(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with told_to_dagster():
            opened = names.file(context.resources).open()
            return attend(lambda: work(opened))

    return made


def _slot(opened: Pipeline) -> dg.AssetCheckResult:
    state = slot_state(opened)
    found = finding(state)
    return dg.AssetCheckResult(
        passed=found is None,
        severity=severity(found),
        description=None if found is None else found.said,
        metadata=slot_metadata(state),
    )


def _positions(opened: Pipeline) -> dg.AssetCheckResult:
    found = checkup.positions(opened)
    said: dict[str, Any] = {
        "rows": found.rows,
        "transactions": found.transactions,
        "repeated": found.repeated,
        "missing": found.missing,
        "past_the_watermark": found.past_the_watermark,
        "watermark": str(found.watermark),
    }
    return dg.AssetCheckResult(passed=found.sound, severity=ERROR, metadata=said)


def _copies(opened: Pipeline) -> dg.AssetCheckResult:
    due = checkup.due_copies(opened)
    rows = [dg.TableRecord({"table": table, "why": why}) for table, why in due.items()]
    return dg.AssetCheckResult(
        passed=not due,
        severity=WARN,
        description=f"{len(due)} table(s) wait for a copy; the stream makes it" if due else None,
        metadata={"due": dg.MetadataValue.table(rows)} if rows else {},
    )
