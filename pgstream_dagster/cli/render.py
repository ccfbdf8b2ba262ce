"""What commands print: results as text or JSON. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pgstream_dagster.lsn import Lsn

if TYPE_CHECKING:
    from pgstream_dagster.changelog.sink_letters import SinkLetter
    from pgstream_dagster.copy.copying import Copied
    from pgstream_dagster.search.compare import Compared
    from pgstream_dagster.search.control import Generation
    from pgstream_dagster.search.index import Indexed
    from pgstream_dagster.search.index_status import AliasStatus
    from pgstream_dagster.search.reindex import Reindexed
    from pgstream_dagster.sinks.control import SinkStatus
    from pgstream_dagster.sinks.state import Progress as SinkProgress
    from pgstream_dagster.source.preflight import Finding
    from pgstream_dagster.source.slot import SlotState
    from pgstream_dagster.tables.approval import HeldTable
    from pgstream_dagster.upkeep.differences import TableDifference
    from pgstream_dagster.upkeep.readers import ReaderStatus
    from pgstream_dagster.upkeep.reconcile import Reconciliation, TableReconciliation
    from pgstream_dagster.upkeep.reconcile_tables import (
        TypedReconciliation,
        TypedReconciliations,
    )
    from pgstream_dagster.upkeep.status import (
        Heartbeat,
        HeldSnapshot,
        IndexerHeartbeat,
        LongTransaction,
        Status,
    )
    from pgstream_dagster.upkeep.teardown import TornDown


def as_json(value: object) -> str:
    """`value` as JSON: LSNs as Postgres prints them, dataclasses by their field names."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


def as_json_line(value: object) -> str:
    """As `as_json`, without a line break."""
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: object) -> Any:  # noqa: PLR0911 - one line per type
    """`value` in JSON's own types."""
    match value:
        case Enum():
            return plain(value.value)
        case Lsn():  # before int: an Lsn is an int
            return str(value)
        case None | str() | int() | float():
            return value
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
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
    """Columns under their heads; numbers right-aligned, with separators."""
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
    """The result of `setup`, `snapshot` and `resnapshot`, which took `seconds`."""
    if not copied:
        return "nothing to copy"
    rows = [(c.table, c.rows, c.consistent_point, c.seconds) for c in copied]
    count = f"{len(copied):,} table{'s' if len(copied) > 1 else ''}"
    total = f"copied {count}, {sum(c.rows for c in copied):,} rows in {duration(seconds)}"
    lines = [table(["table", "rows", "as of", "seconds"], rows), total]
    return "\n".join([*lines, f"next: {next_step}"] if next_step else lines)


def findings(findings: Sequence[Finding]) -> str:
    """`pgstream check` for people: a paragraph per finding, then the next step."""
    lines = [f"{finding.severity}: {finding}" for finding in findings]
    errors = sum(finding.severity == "error" for finding in findings)
    verdict = "no errors; next: pgstream setup"
    if errors:
        verdict = f"{errors} error(s): 'pgstream setup' would refuse"
    return "\n".join([*lines, verdict])


def status(status: Status) -> str:
    """`pgstream status` for people: a line per fact, then the tables."""
    facts: list[tuple[str, str | None]] = [
        ("pipeline", status.pipeline),
        ("source", status.source),
        ("lake", status.lake),
        ("problem", status.problem and status.problem.message),
        ("watermark", _watermark(status)),
        ("lag", _lag(status)),
        ("slot", status.slot and _slot(status.slot)),
        ("publication", status.publication),
        ("ddl", _ddl(status)),
        ("stream", _stream(status)),
        ("index", status.indexer and _indexer(status.indexer)),
        ("copies", status.stream and status.stream.copy_failed),
        *(("unfit table", sentence) for sentence in status.unfit_tables),
        *(("held table", held_table(table)) for table in status.held_tables),
        ("transaction", status.long_transaction and _transaction(status.long_transaction)),
        ("snapshot", status.held_snapshot and _held(status.held_snapshot)),
    ]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name.ljust(width)}  {fact}" for name, fact in facts if fact]
    if status.tables:
        rows = [(t.table, t.copied_at, t.estimated_rows, t.copy_due) for t in status.tables]
        lines += ["", table(["table", "copied as of", "rows (about)", "copy due"], rows)]
    if status.partitions:
        parts = [(p.topic, p.partition, p.offset, p.behind) for p in status.partitions]
        lines += ["", table(["topic", "partition", "landed up to", "behind"], parts)]
    return "\n".join(lines)


def held_table(held: HeldTable) -> str:
    """A typed table whose changes of columns wait: the changes, and what to do."""
    if held.is_approved:
        then = "approved; the next merge applies them"
    else:
        then = f"'pgstream tables approve {held.table} --versions {held.versions}' applies them"
    changes = "; ".join(held.changes)
    return f"{held.table} stays at {held.position}, because of changes: {changes}; {then}"


def _held(snapshot: HeldSnapshot) -> str:
    return (
        f"held by a copy for {snapshot.seconds:.0f} s: VACUUM keeps the rows of"
        f" {snapshot.transactions:,} transactions"
    )


def _watermark(status: Status) -> str | None:
    return None if status.watermark is None else f"{status.watermark} (epoch {status.epoch})"


def _lag(status: Status) -> str | None:
    if status.lag_bytes is None:
        return None
    return f"{size(status.lag_bytes)} of WAL behind the source ({status.source_lsn})"


def _ddl(status: Status) -> str | None:
    if status.slot is None:
        return None
    if status.ddl_reported_since is None:
        return "seen with the next row of its table; 'pgstream check' says why"
    return f"reported by event triggers since {status.ddl_reported_since}"


def _slot(slot: SlotState) -> str:
    pid = slot.active_pid
    reader = "no process reads it" if pid is None else f"read by process {pid}"
    kept = "" if slot.retained_bytes is None else f", keeps {size(slot.retained_bytes)} of WAL"
    state = "" if slot.wal_status is None else f" ({slot.wal_status})"
    room = "" if slot.safe_wal_bytes is None else f", lost after {size(slot.safe_wal_bytes)} more"
    return f"{slot.slot}: {reader}{kept}{state}{room}"


def _stream(status: Status) -> str:
    stream = status.stream
    if stream is None:
        return f"no heartbeat in {status.heartbeat}"
    return f"{_heartbeat(stream)}: {stream.rows:,} changes in {stream.commits:,} commits"


def _indexer(indexer: IndexerHeartbeat) -> str:
    lag = "" if indexer.lag_bytes is None else f", {size(indexer.lag_bytes)} of WAL behind the log"
    return f"{_heartbeat(indexer)}: {indexer.documents:,} documents{lag}"


def _heartbeat(heartbeat: Heartbeat) -> str:
    reason = f" ({heartbeat.reason})" if heartbeat.reason else ""
    ago = duration(heartbeat.seconds_ago)
    return f"{heartbeat.state}{reason}, reported by process {heartbeat.pid} {ago} ago"


def _transaction(transaction: LongTransaction) -> str:
    return f"{transaction.holder} writes since {duration(transaction.seconds)} and keeps WAL"


def torn_down(done: TornDown) -> str:
    """The result of `teardown`: what was dropped from the source, was not there, or is not ours."""
    slot = "dropped" if done.slot_dropped else "was not there"
    publication = "dropped" if done.publication_dropped else "was not there"
    if done.publication_kept:
        name = sql_name(done.publication)
        publication = f"stays, 'pgstream setup' did not make it: drop publication {name}"
    lines = [f"slot {done.slot!r} {slot}", f"publication {done.publication!r} {publication}"]
    if done.schema_triggers_dropped:
        lines.append("event triggers of schema 'pgstream' dropped")
    return "\n".join(lines)


def sql_name(name: str) -> str:
    """`name` as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def reconciliation(done: Reconciliation) -> str:
    """`pgstream reconcile` for people: counts per table, then the first keys that differ."""
    side = _side(done)
    heads = ["table", side, "log", f"only in {side}", "only in log", "differing", "identical"]
    rows = [(t.table, *_counts(t.difference), t.identical) for t in done.tables]
    lines = [table(heads, rows)]
    for compared in done.tables:
        lines += [f"{compared.table}: {line}" for line in _differences(compared, side)]
    verdict = "identical" if done.identical else "DIFFERENT"
    return "\n".join([*lines, f"{side} and log are {verdict} at {done.consistent_point}"])


def _side(done: Reconciliation) -> str:
    """What was compared with the log."""
    return "source" if done.sink is None else "target"


def _counts(difference: TableDifference | None) -> tuple[int | None, ...]:
    if difference is None:
        return (None,) * 5
    return (
        difference.source_rows,
        difference.log_rows,
        difference.only_in_source_count,
        difference.only_in_log_count,
        difference.differing_count,
    )


def typed_reconciliation(done: TypedReconciliations) -> str:
    """`pgstream reconcile --tables` for people: counts, then the first keys that differ."""
    heads = ["table", "source", "log", "typed", "source differs", "typed differs", "identical"]
    rows = [(t.table, *_typed_counts(t), t.identical) for t in done.tables]
    lines = [table(heads, rows)]
    for compared in done.tables:
        if compared.reason is not None:
            lines.append(f"{compared.table}: not compared: {compared.reason}")
        for difference, side in ((compared.source, "source"), (compared.typed, "typed table")):
            lines += [f"{compared.table}: {line}" for line in _keys(difference, side)]
        if compared.typed is not None and not compared.typed.identical:
            repair = f"'pgstream tables merge --rebuild {compared.table}' repairs it"
            lines.append(f"{compared.table}: {repair}")
    if not done.tables:
        return "there is no typed table to compare; 'tables.include' says which there are"
    verdict = "identical" if done.identical else "DIFFERENT"
    return "\n".join([*lines, f"source, log and typed tables are {verdict} at {done.position}"])


def _typed_counts(compared: TypedReconciliation) -> tuple[int | None, ...]:
    source, typed = compared.source, compared.typed
    return (
        source and source.source_rows,
        source and source.log_rows,
        typed and typed.source_rows,
        source and source.count,
        typed and typed.count,
    )


def typed_as_json(done: TypedReconciliations) -> str:
    """`pgstream reconcile --tables --json`."""
    tables = [
        {"table": t.table, "identical": t.identical, "reason": t.reason}
        | {"source": plain(t.source)}
        | {"typed": _renamed(plain(t.typed), "typed")}
        for t in done.tables
    ]
    facts = {"identical": done.identical, "epoch": done.epoch, "position": done.position}
    return as_json(facts | {"tables": tables})


def _renamed(difference: Mapping[str, object] | None, side: str) -> dict[str, object] | None:
    """A difference under the name of what is in the place of the source."""
    if difference is None:
        return None
    return {name.replace("source", side): value for name, value in difference.items()}


def _differences(compared: TableReconciliation, side: str) -> Iterator[str]:
    """Why a table was not compared, or the keys that differ; values are never shown."""
    if compared.reason is not None:
        yield f"not compared: {compared.reason}"
    yield from _keys(compared.difference, side)


def _keys(difference: TableDifference | None, side: str) -> Iterator[str]:
    if difference is None:
        return
    for keys, where in ((difference.only_in_source, side), (difference.only_in_log, "log")):
        for key in keys:
            yield f"only in the {where}: {_key(key)}"
    for key, columns in difference.differing:
        yield f"differs: {_key(key)} in {', '.join(columns)}"


def _key(key: Sequence[str | None]) -> str:
    return "(" + ", ".join("NULL" if value is None else repr(value) for value in key) + ")"


def indexed(done: Indexed) -> str:
    """The result of `pgstream index run`."""
    at = "".join(f"\n{index} is up to {lsn}" for index, lsn in done.delivered.items())
    return f"wrote {done.documents:,} documents{at}"


def index_status(aliases: Sequence[AliasStatus]) -> str:
    """`pgstream index status` for people."""
    heads = ["alias", "index", "state", "documents", "lag", "dead letters", "re-index due"]
    rows: list[tuple[object, ...]] = []
    for alias in aliases:
        for index in alias.generations:
            counts = (index.documents, size(index.lag_bytes), index.refused)
            rows.append((alias.alias, index.index, index.state.value, *counts, index.outdated))
        if not alias.generations:
            state = "alias taken" if alias.problem else "none yet"
            rows.append((alias.alias, None, state, None, None, None, None))
    problems = "".join(f"\n{alias.problem}" for alias in aliases if alias.problem)
    return table(heads, rows) + problems


def readers(readers: Sequence[ReaderStatus]) -> str:
    """The readers of the log in `pgstream status`, for people; nothing if there are none."""
    if not readers:
        return ""
    heads = ["reader", "kind", "state", "position", "lag", "behind", "dead letters", "next step"]
    rows = [
        (
            *(reader.reader, reader.kind, reader.state, reader.position),
            None if reader.lag_bytes is None else size(reader.lag_bytes),
            None if reader.lag_seconds is None else duration(reader.lag_seconds),
            *(reader.refused, reader.next_step),
        )
        for reader in readers
    ]
    problems = "".join(f"\n{reader.reader}: {reader.error}" for reader in readers if reader.error)
    return f"\n\n{table(heads, rows)}{problems}"


def sink_status(sinks: Sequence[SinkStatus]) -> str:
    """`pgstream sink status` for people."""
    heads = ["sink", "target", "state", "position", "lag", "changes", "refused", "held"]
    rows = [
        (
            *(sink.sink, sink.target, sink.state, sink.position),
            None if sink.lag_bytes is None else size(sink.lag_bytes),
            *(f"{sink.changes:,}", sink.refused, sink.held),
        )
        for sink in sinks
    ]
    problems = "".join(f"\n{sink.sink}: {sink.error}" for sink in sinks if sink.error)
    return table(heads, rows) + problems


def sink_progress(progress: Mapping[str, SinkProgress]) -> list[dict[str, object]]:
    """How far each reader of a process of sinks is, for JSON."""
    return [
        {
            "sink": name,
            "position": None if sink.cursor is None else sink.cursor.watermark,
            "changes": sink.changes,
            "dead_letters": sink.refused,
            "error": sink.error,
        }
        for name, sink in sorted(progress.items())
    ]


def sink_letters(letters: Sequence[SinkLetter]) -> str:
    """`pgstream sink letters` for people, without the changes themselves."""
    if not letters:
        return "no dead letters"
    rows = [
        (
            *(str(letter.commit_lsn), f"{letter.namespace}.{letter.relation}"),
            *(None if letter.key is None else _key(letter.key), letter.state.value, letter.reason),
        )
        for letter in letters
    ]
    return table(["commit", "table", "key", "state", "reason"], rows)


def sink_letters_as_json(letters: Sequence[SinkLetter]) -> str:
    """The same with the changes; a commit LSN is a number, as in the change log."""
    return as_json([plain(letter) | {"commit_lsn": int(letter.commit_lsn)} for letter in letters])


def compared(aliases: Sequence[Compared]) -> str:
    """`pgstream index compare` for people; values are never shown."""
    heads = ["alias", "index", "compared", "only in index", "only in log", "differing", "identical"]
    rows, lines = list[tuple[object, ...]](), list[str]()
    for alias in aliases:
        name, difference = alias.alias, alias.difference
        if difference is None:
            rows.append((name, alias.index, None, None, None, None, False))
            lines.append(f"{name}: not compared: {alias.reason}")
            continue
        counts = (difference.only_in_index, difference.only_in_log, difference.differing)
        rows.append((name, alias.index, difference.rows, *counts, alias.identical))
        if not alias.identical:
            ids = ", ".join(difference.sample)
            lines.append(f"{name}: {ids} differ; 'pgstream reindex {name}' repairs it")
    return "\n".join([table(heads, rows), *lines])


def planned(generation: Generation) -> str:
    """The result of `pgstream reindex --dry-run`: the mapping."""
    heads = ["column", "field", "mapping"]
    rows = [(f.column, f.name, json.dumps(f.mapping)) for f in generation.fields]
    return table(heads, rows)


def reindexed(done: Reindexed) -> str:
    """The result of `pgstream reindex`."""
    rate = done.documents / done.load_seconds if done.load_seconds else 0
    before = f", which was on {done.replaced}" if done.replaced else ""
    refused = (
        f"\n{done.refused:,} were refused: see 'pgstream index status'" if done.refused else ""
    )
    return (
        f"{done.alias} is on {done.index}{before}: {done.documents:,} documents"
        f" ({rate:,.0f}/s), equal to the log, in {duration(done.seconds)}{refused}"
    )


def reconciliation_as_json(done: Reconciliation) -> str:
    """`pgstream reconcile --json`; with a sink, `target` in place of `source`."""
    side = _side(done)
    tables = [
        {"table": t.table, "identical": t.identical, "reason": t.reason}
        | {name.replace("source", side): v for name, v in (plain(t.difference) or {}).items()}
        for t in done.tables
    ]
    facts: dict[str, object] = {"identical": done.identical, "epoch": done.epoch}
    if done.sink is not None:
        facts["sink"] = done.sink
    return as_json(facts | {"consistent_point": done.consistent_point, "tables": tables})


def duration(seconds: float) -> str:
    """Seconds in units for people."""
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
    """Bytes in units for people."""
    amount = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(amount) < 1024:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TB"
