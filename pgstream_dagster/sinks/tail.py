"""Following the changes of a pipeline on the standard output: for people, and for scripts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from pgstream_dagster.config.kafka import DATABASE
from pgstream_dagster.named import named
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import Change, Image, Key
from pgstream_dagster.readers.change_reader import ChangeReader, Selection
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.control import position
from pgstream_dagster.sinks.debezium import Debezium
from pgstream_dagster.sinks.envelope import Envelope, instant
from pgstream_dagster.sinks.start import beginning

Format: TypeAlias = Literal["json", "debezium", "pretty"]

MAX_BYTES: Final = 64 << 20
READ_SECONDS: Final = 0.2
SHOWN: Final = 60
"""Characters of a value in the format for people."""

INSTANT: Final = len("2026-01-01T00:00:00.000000Z")


@named
def tail(
    pipeline: Pipeline,
    tables: Sequence[str] = (),
    *,
    start: str = "now",
    form: Format = "pretty",
    write: Callable[[str], None],
    stop: threading.Event,
) -> int:
    """
    Write the changes of tables as they arrive, from `start` on; how many there were.

    Raises:
        NotSetUp, InvalidPosition
    """
    render = lines_of(form, pipeline.name)
    with pipeline.open() as opened:
        cursor = beginning(opened, 0, position(opened, start))
        name = f"{pipeline.name}-tail-{threading.get_ident()}"
        reader = ChangeReader(opened, name, cursor, _selection(tables), MAX_BYTES)
        count = 0
        try:
            while not stop.is_set():
                batch = reader.read(READ_SECONDS)
                for change in batch.changes if batch else ():
                    for line in render(change):
                        write(line)
                    count += 1
        finally:
            reader.close()
    return count


def _selection(tables: Sequence[str]) -> Selection:
    patterns = [TablePattern.parse(table) for table in tables or ("*.*",)]
    return Selection(lambda namespace, name: any(p.matches(namespace, name) for p in patterns))


def lines_of(form: Format, pipeline: str) -> Callable[[Change], list[str]]:
    """
    From a change to its lines: one, or two of an update of the key in Debezium's form.

    Debezium has no message for some changes, which then have no line.
    """
    if form == "pretty":
        return lambda change: [_pretty(change)]
    if form == "json":
        envelope = Envelope(pipeline)
        return lambda change: [envelope(change).decode()]
    debezium = Debezium(pipeline, DATABASE)

    def values(change: Change) -> list[str]:
        if change.op not in debezium.operations:
            return []
        if change.old_key is None:
            return [debezium.value(change).decode()]
        return [debezium.deleted(change).decode(), debezium.created(change).decode()]

    return values


def _pretty(change: Change) -> str:
    at = "copy" if change.committed_at_us is None else instant(change.committed_at_us)
    key, former = _key(change.key), _key(change.old_key)
    shown = f" ({former} -> {key})" if former else f" ({key})" if key else ""
    table = f"{change.namespace}.{change.relation}"
    return f"{at:{INSTANT}} {change.op:8} {table}{shown}  {_columns(change)}".rstrip()


def _key(key: Key | None) -> str:
    return ", ".join(_value(text) for text in key or ())


def _columns(change: Change) -> str:
    """What changed: of an update whose old row is known, only the columns that differ."""
    before, after = change.before or {}, change.after
    if after is None:
        return "" if change.op != Op.DELETE else _shown(before)
    if change.op == Op.UPDATE and before:
        return _shown({name: text for name, text in after.items() if before.get(name) != text})
    return _shown(after)


def _shown(image: Image) -> str:
    return "  ".join(f"{name}={_value(text)}" for name, text in image.items())


def _value(text: str | None) -> str:
    if text is None:
        return "NULL"
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return repr(shown) if not shown.isprintable() or " " in shown or not shown else shown
