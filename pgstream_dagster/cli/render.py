"""What commands print: values into text or JSON. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pgstream_dagster.lsn import Lsn

if TYPE_CHECKING:
    from pgstream_dagster.copy.copying import Copied
    from pgstream_dagster.search.compare import Compared
    from pgstream_dagster.search.control import Generation
    from pgstream_dagster.search.index import Indexed
    from pgstream_dagster.search.index_status import AliasStatus
    from pgstream_dagster.search.reindex import Reindexed
    from pgstream_dagster.source.preflight import Finding
    from pgstream_dagster.source.slot import SlotState
    from pgstream_dagster.upkeep.differences import TableDifference
    from pgstream_dagster.upkeep.reconcile import Reconciliation, TableReconciliation
    from pgstream_dagster.upkeep.status import (
        HeldSnapshot,
        IndexerHeartbeat,
        LongTransaction,
        Status,
    )
    from pgstream_dagster.upkeep.teardown import TornDown


def as_json(value: object) -> str:
    """`value` for a machine: LSNs as Postgres prints them, dataclasses by their field names."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


def plain(value: object) -> Any:  # noqa: PLR0911 - one line per type
    """`value` of JSON's own types."""
    match value:
        case Enum():
            return plain(value.value)
        case Lsn():  # before int: it is one
            return str(value)
        case None | str() | int() | float():
            return value
        case Mapping():
            return {str(name): plain(said) for name, said in value.items()}
        case set() | frozenset():
            return sorted(plain(item) for item in value)
        case Sequence():
            return [plain(item) for item in value]
        case _:
            pass
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


_NUMBER: Final = (int, float, type(None))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under their heads; numbers to the right, with separators."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [all(isinstance(row[i], _NUMBER) for row in rows) for i in range(len(heads))]
    lines = [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [list(heads), *cells]
    ]
    return "\n".join(lines)


def copies(copied: Sequence[Copied], seconds: float, next_step: str | None) -> str:
    """What `setup`, `snapshot` and `resnapshot` print at their end; they took `seconds`."""
    if not copied:
        return "nothing to copy"
    rows = [(c.table, c.rows, c.consistent_point, c.seconds) for c in copied]
    count = f"{len(copied):,} table{'s' if len(copied) > 1 else ''}"
    total = f"copied {count}, {sum(c.rows for c in copied):,} rows in {duration(seconds)}"
    lines = [table(["table", "rows", "as of", "seconds"], rows), total]
    return "\n".join([*lines, f"next: {next_step}"] if next_step else lines)


def findings(found: Sequence[Finding]) -> str:
    """`pgstream check` for people: a paragraph each, then what comes next."""
    lines = [f"{finding.severity}: {finding}" for finding in found]
    errors = sum(finding.severity == "error" for finding in found)
    verdict = (
        f"{errors} error(s): 'pgstream setup' would refuse"
        if errors
        else "no errors; next: pgstream setup"
    )
    return "\n".join([*lines, verdict])


def status(found: Status) -> str:
    """`pgstream status` for people: a line per fact, then the tables."""
    facts: list[tuple[str, str | None]] = [
        ("pipeline", found.pipeline),
        ("source", found.source),
        ("lake", found.lake),
        ("problem", found.problem and found.problem.message),
        ("watermark", _watermark(found)),
        ("lag", _lag(found)),
        ("slot", found.slot and _slot(found.slot)),
        ("publication", found.publication),
        ("stream", _stream(found)),
        ("index", found.indexer and _indexer(found.indexer)),
        ("copies", found.stream and found.stream.copy_failed),
        *(("unfit table", sentence) for sentence in found.unfit_tables),
        ("transaction", found.long_transaction and _transaction(found.long_transaction)),
        ("snapshot", found.held_snapshot and _held(found.held_snapshot)),
    ]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name.ljust(width)}  {said}" for name, said in facts if said]
    if found.tables:
        rows = [(t.table, t.copied_at, t.estimated_rows, t.copy_due) for t in found.tables]
        lines += ["", table(["table", "copied as of", "rows (about)", "copy due"], rows)]
    return "\n".join(lines)


def _held(snapshot: HeldSnapshot) -> str:
    return (
        f"held by a copy for {snapshot.seconds:.0f} s: VACUUM keeps the rows of"
        f" {snapshot.transactions:,} transactions"
    )


def _watermark(found: Status) -> str | None:
    return None if found.watermark is None else f"{found.watermark} (epoch {found.epoch})"


def _lag(found: Status) -> str | None:
    if found.lag_bytes is None:
        return None
    return f"{size(found.lag_bytes)} of WAL behind the source ({found.source_lsn})"


def _slot(slot: SlotState) -> str:
    pid = slot.active_pid
    reader = "no process reads it" if pid is None else f"read by process {pid}"
    kept = "" if slot.retained_bytes is None else f", keeps {size(slot.retained_bytes)} of WAL"
    state = "" if slot.wal_status is None else f" ({slot.wal_status})"
    room = "" if slot.safe_wal_bytes is None else f", lost after {size(slot.safe_wal_bytes)} more"
    return f"{slot.slot}: {reader}{kept}{state}{room}"


def _stream(found: Status) -> str:
    stream = found.stream
    if stream is None:
        return f"no heartbeat in {found.heartbeat}"
    reason = f" ({stream.reason})" if stream.reason else ""
    return (
        f"{stream.state}{reason}, said process {stream.pid} {duration(stream.seconds_ago)} ago:"
        f" {stream.rows:,} changes in {stream.commits:,} commits"
    )


def _indexer(indexer: IndexerHeartbeat) -> str:
    reason = f" ({indexer.reason})" if indexer.reason else ""
    lag = "" if indexer.lag_bytes is None else f", {size(indexer.lag_bytes)} of WAL behind the log"
    return (
        f"{indexer.state}{reason}, said process {indexer.pid}"
        f" {duration(indexer.seconds_ago)} ago: {indexer.documents:,} documents{lag}"
    )


def _transaction(transaction: LongTransaction) -> str:
    return f"{transaction.holder} writes since {duration(transaction.seconds)} and keeps WAL"


def torn_down(done: TornDown) -> str:
    """What is gone from the source, and what was not there or is not ours."""
    slot = "dropped" if done.slot_dropped else "was not there"
    publication = "dropped" if done.publication_dropped else "was not there"
    if done.publication_kept:
        name = sql_name(done.publication)
        publication = f"stays, 'pgstream setup' did not make it: drop publication {name}"
    return f"slot {done.slot!r} {slot}\npublication {done.publication!r} {publication}"


def sql_name(name: str) -> str:
    """As a statement takes it."""
    return '"' + name.replace('"', '""') + '"'


def reconciliation(found: Reconciliation) -> str:
    """`pgstream reconcile` for people: counts per table, then the first keys that differ."""
    heads = ["table", "source", "log", "only in source", "only in log", "differing", "identical"]
    rows = [(one.table, *_counts(one.difference), one.identical) for one in found.tables]
    lines = [table(heads, rows)]
    for one in found.tables:
        lines += [f"{one.table}: {line}" for line in _differences(one)]
    verdict = "identical" if found.identical else "DIFFERENT"
    return "\n".join([*lines, f"source and log are {verdict} at {found.consistent_point}"])


def _counts(found: TableDifference | None) -> tuple[int | None, ...]:
    if found is None:
        return (None,) * 5
    return (
        found.source_rows,
        found.log_rows,
        found.only_in_source_count,
        found.only_in_log_count,
        found.differing_count,
    )


def _differences(one: TableReconciliation) -> Iterator[str]:
    """Why a table was not compared, or the keys that differ; values are never shown."""
    if one.reason is not None:
        yield f"not compared: {one.reason}"
    if (found := one.difference) is None:
        return
    for keys, where in ((found.only_in_source, "source"), (found.only_in_log, "log")):
        for key in keys:
            yield f"only in the {where}: {_key(key)}"
    for key, columns in found.differing:
        yield f"differs: {_key(key)} in {', '.join(columns)}"


def _key(key: Sequence[str | None]) -> str:
    return "(" + ", ".join("NULL" if value is None else repr(value) for value in key) + ")"


def indexed(done: Indexed) -> str:
    """What `pgstream index run` says at its end."""
    at = "".join(f"\n{index} is up to {lsn}" for index, lsn in done.delivered.items())
    return f"wrote {done.documents:,} documents{at}"


def index_status(found: Sequence[AliasStatus]) -> str:
    """`pgstream index status` for people."""
    heads = ["alias", "index", "state", "documents", "lag", "dead letters", "re-index due"]
    rows: list[tuple[object, ...]] = []
    for alias in found:
        for one in alias.generations:
            lag = size(one.lag_bytes)
            counts = (one.documents, lag, one.refused)
            rows.append((alias.alias, one.index, one.state.value, *counts, one.outdated))
        if not alias.generations:
            state = "alias taken" if alias.problem else "none yet"
            rows.append((alias.alias, None, state, None, None, None, None))
    problems = "".join(f"\n{alias.problem}" for alias in found if alias.problem)
    return table(heads, rows) + problems


def compared(found: Sequence[Compared]) -> str:
    """`pgstream index compare` for people; values are never shown."""
    heads = ["alias", "index", "compared", "only in index", "only in log", "differing", "identical"]
    rows, lines = list[tuple[object, ...]](), list[str]()
    for one in found:
        difference = one.difference
        if difference is None:
            rows.append((one.alias, one.index, None, None, None, None, False))
            lines.append(f"{one.alias}: not compared: {one.reason}")
            continue
        counts = (difference.only_in_index, difference.only_in_log, difference.differing)
        rows.append((one.alias, one.index, difference.rows, *counts, one.identical))
        if not one.identical:
            ids = ", ".join(difference.sample)
            lines.append(f"{one.alias}: {ids} differ; 'pgstream reindex {one.alias}' repairs it")
    return "\n".join([table(heads, rows), *lines])


def planned(generation: Generation) -> str:
    """What `pgstream reindex --dry-run` would make."""
    heads = ["column", "field", "mapping"]
    rows = [(f.column, f.name, json.dumps(f.mapping)) for f in generation.fields]
    return table(heads, rows)


def reindexed(done: Reindexed) -> str:
    """What `pgstream reindex` says at its end."""
    rate = done.documents / done.load_seconds if done.load_seconds else 0
    before = f", which was on {done.replaced}" if done.replaced else ""
    letters = (
        f"\n{done.refused:,} were refused: see 'pgstream index status'" if done.refused else ""
    )
    return (
        f"{done.alias} is on {done.index}{before}: {done.documents:,} documents"
        f" ({rate:,.0f}/s), equal to the log, in {duration(done.seconds)}{letters}"
    )


def reconciliation_as_json(found: Reconciliation) -> str:
    """The same for a machine."""
    tables = [
        {"table": one.table, "identical": one.identical, "reason": one.reason}
        | (plain(one.difference) or {})
        for one in found.tables
    ]
    said = {"identical": found.identical, "epoch": found.epoch}
    return as_json(said | {"consistent_point": found.consistent_point, "tables": tables})


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _cell(value: object) -> str:
    if isinstance(value, Lsn):
        return str(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return "" if value is None else str(value)


def size(count: int) -> str:
    """Bytes as a person reads them."""
    amount = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(amount) < 1024:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TB"
