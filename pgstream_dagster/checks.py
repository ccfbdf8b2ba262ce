"""
The asset checks: what a person would look at in the morning, and what a wrong answer would cost.

`slot_health` asks Postgres alone and is told by the stream itself every few minutes, too;
`tables_fit` is told by the stream whenever its outcome changes.
The others read the log when somebody asks. That a new index equals the fold is checked by every
re-index before its alias moves (`assets.search`): one that differs never serves. Here is asked
whether the index that serves still does.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import dagster as dg

from pgstream_dagster.assets.errors import told_to_dagster
from pgstream_dagster.assets.health import (
    SLOT_HEALTH,
    TABLES_FIT,
    severity,
    slot_metadata,
    tables_outcome,
)
from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.search import key_of, op_names
from pgstream_dagster.assets.snapshot import SNAPSHOT
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.threads import run_in_thread
from pgstream_dagster.upkeep.health import finding, slot_state

ERROR = dg.AssetCheckSeverity.ERROR
WARN = dg.AssetCheckSeverity.WARN

LIVE_EQUALS_FOLD: Final = "live_index_equals_fold"


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
    """The check of every index that serves."""
    return [
        _check(
            names,
            key_of(names, alias),
            LIVE_EQUALS_FOLD,
            "The index behind the alias says what the log says, document by document, while both"
            " go on.",
            partial(_index, alias=alias),
            op_name=names.of(f"{op}__{LIVE_EQUALS_FOLD}"),
        )
        for alias, op in op_names(aliases).items()
    ]


Work = Callable[[Pipeline], dg.AssetCheckResult]


def _check(
    names: Names,
    asset: dg.AssetKey,
    name: str,
    description: str,
    work: Work,
    op_name: str | None = None,
) -> dg.AssetChecksDefinition:
    spec = dg.AssetCheckSpec(name, asset=asset, description=description)

    @dg.multi_asset_check(
        name=op_name or f"{asset.to_python_identifier()}_{name}",
        specs=[spec],
        required_resource_keys=names.resources,
    )
    def made(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with told_to_dagster():
            opened = names.file(context.resources).open()
            return run_in_thread(lambda: work(opened))

    return made


def _slot(opened: Pipeline) -> dg.AssetCheckResult:
    state = slot_state(opened)
    found = finding(state)
    return dg.AssetCheckResult(
        passed=found is None,
        severity=severity(found),
        description=None if found is None else found.message,
        metadata=slot_metadata(state),
    )


def _positions(opened: Pipeline) -> dg.AssetCheckResult:
    from pgstream_dagster.upkeep.log_checks import positions

    found = positions(opened)
    said: dict[str, Any] = {
        "rows": found.rows,
        "transactions": found.transactions,
        "repeated": found.repeated,
        "missing": found.missing,
        "past_the_watermark": found.past_the_watermark,
        **position("watermark", found.watermark),
    }
    return dg.AssetCheckResult(passed=found.sound, severity=ERROR, metadata=said)


def _tables_fit(opened: Pipeline) -> dg.AssetCheckResult:
    from pgstream_dagster.upkeep.log_checks import unfit_tables

    return dg.AssetCheckResult(**tables_outcome(unfit_tables(opened)))


def _copies(opened: Pipeline) -> dg.AssetCheckResult:
    from pgstream_dagster.upkeep.log_checks import due_copies

    due = due_copies(opened)
    rows = [dg.TableRecord({"table": table, "why": why}) for table, why in due.items()]
    return dg.AssetCheckResult(
        passed=not due,
        severity=WARN,
        description=f"{len(due)} table(s) wait for a copy; the stream makes it" if due else None,
        metadata={"due": dg.MetadataValue.table(rows)} if rows else {},
    )


def _index(opened: Pipeline, alias: str) -> dg.AssetCheckResult:
    from pgstream_dagster.search.compare import compare

    found = compare(opened, alias)
    difference = found.difference
    if difference is None:
        why = f"not compared: {found.reason}"
        return dg.AssetCheckResult(passed=False, severity=WARN, description=why)
    said = {
        "index": found.index or "",
        **position("at", found.at),
        "compared": difference.rows,
        "differing": difference.differences,
        "sample": ", ".join(difference.sample),
    }
    remedy = f"build it again: launch 'reindex' of {alias}" if difference.differences else None
    return dg.AssetCheckResult(
        passed=difference.identical, severity=ERROR, description=remedy, metadata=said
    )
