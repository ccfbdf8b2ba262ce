"""
Changes in the form of Debezium's connector for Postgres, for consumers written for it. Pure.

As its JSON converter writes without schemas (`schemas.enable=false`): key and value, with
`time.precision.mode=adaptive`, `decimal.handling.mode=string` or `double`,
`interval.handling.mode=numeric`, `hstore.handling.mode=json` and `binary.handling.mode=bytes`
(base64). `docs/guides/coming-from-debezium.md` lists what is covered, and what differs.

Source:
    https://debezium.io/documentation/reference/stable/connectors/postgresql.html
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, Image, Key
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import Column
from pgstream_dagster.sinks.columns import (
    Member,
    by_group,
    images,
    joined,
    keys,
    octets_of,
    transactions,
)
from pgstream_dagster.sinks.envelope import EPOCH, TRANSACTIONS_KEPT, label
from pgstream_dagster.values.exact import Render, exact, string
from pgstream_dagster.values.kinds import kind_of
from pgstream_dagster.values.render import renderer

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""In place of a value that was not sent (`unavailable.value.placeholder`)."""

VERSION: Final = "3.0.0.Final"
"""The version whose form this is, in `source.version`."""

OPERATIONS: Final[Mapping[str, str]] = {
    Op.INSERT: "c",
    Op.UPDATE: "u",
    Op.DELETE: "d",
    Op.READ: "r",
    Op.TRUNCATE: "t",
}

_COLUMNS: Final = ("key", "before", "after", "op")

Decimals = Literal["string", "double"]

POSITIVE_INFINITY: Final = "9223372036825200000"
NEGATIVE_INFINITY: Final = "-9223372036832400000"
"""As the connector writes an infinite timestamp, after Postgres' JDBC driver."""

MOST_DIGITS: Final = 3
"""Digits of a second's fraction up to which a time is milliseconds, and not microseconds."""


class Plan(NamedTuple):
    """
    What the messages of one version of a relation have in common.

    `unavailable` has what stands for a value that was not sent, of each field.
    """

    fields: Sequence[Member]
    unavailable: Sequence[str]
    key: Sequence[Member]
    names: str


class Debezium:
    """Changes of one pipeline; its name takes the place of `topic.prefix`."""

    operations: Final = frozenset(OPERATIONS)
    """The operations that have a message; markers and DDL have none."""

    def __init__(self, pipeline: str, database: str, decimals: Decimals = "string") -> None:
        self._decimals: Final[Decimals] = decimals
        self._source_of: Final = _source_of(pipeline, database)
        self._plans: Final[dict[tuple[int, str, str], Plan]] = {}

    def key(self, change: Change, key: Key | None) -> bytes | None:
        """The key of a record; none without a key, and for a truncate."""
        if key is None or not key:
            return None
        fields = zip(self._plan(change).key, key, strict=True)
        values = [f.label + ("null" if text is None else f.render(text)) for f, text in fields]
        return f"{{{','.join(values)}}}".encode()

    def value(self, change: Change) -> bytes:
        """The value of a record."""
        return self._value(change, OPERATIONS[change.op], change.before, change.after)

    def deleted(self, change: Change) -> bytes:
        """Of an update of the key: that the row with the old one is gone."""
        before = change.before
        if before is None and change.schema is not None:
            before = dict(zip(change.schema.key, change.old_key or (), strict=True))
        return self._value(change, "d", before, None)

    def created(self, change: Change) -> bytes:
        """Of an update of the key: that there is a row with the new one."""
        return self._value(change, "c", None, change.after)

    def of_version(
        self, rows: pa.Table, first: Change
    ) -> tuple[Sequence[bytes | None], list[bytes]] | None:
        """
        `key` and `value` of each change of one version of a table, without Python per row.

        `None`: columns do not express them. `first` is the change of the first row.
        """
        plan = self._plan(first)
        columns = {name: rows.column(name).combine_chunks() for name in _COLUMNS}
        key = keys(columns["key"], plan.key)
        before = images(columns["before"], plan.fields, ["null"] * len(plan.fields))
        after = images(columns["after"], plan.fields, plan.unavailable)
        if key is None or before is None or after is None:
            return None
        op = columns["op"]
        group, facts = transactions(rows, "epoch", "commit_lsn", "xid", "committed_at")
        source_of = self._source_of
        source, copied = (
            by_group([source_of(Lsn(lsn), xid, us, is_read) for _, lsn, xid, us in facts], group)
            for is_read in (False, True)
        )
        tails = [_tail(us) for *_, us in facts]
        letters = pa.array([OPERATIONS[name] for name in op.to_pylist()], pa.string())
        texts = joined(
            *('{"before":', before.objects.fill_null("null")),
            *(',"after":', after.objects.fill_null("null")),
            *(',"source":', pc.if_else(pc.equal(op, Op.READ.value), copied, source)),
            *(f'{plan.names},"op":"', letters, by_group(tails, group)),
        )
        return octets_of(key) if plan.key else [None] * len(rows), octets_of(texts)

    def _value(self, change: Change, op: str, before: Image | None, after: Image | None) -> bytes:
        plan = self._plan(change)
        source = self._source_of(
            change.commit_lsn, change.xid, change.committed_at_us, change.op == Op.READ
        )
        rows = ""
        if op != "t":
            rows = f'"before":{_before(plan, before)},"after":{_after(plan, after)},'
        tail = _tail(change.committed_at_us)
        return f'{{{rows}"source":{source}{plan.names},"op":"{op}{tail}'.encode()

    def _plan(self, change: Change) -> Plan:
        version = 0 if change.schema is None else change.schema.schema_id
        plan = self._plans.get((version, change.namespace, change.relation))
        if plan is None:
            plan = _plan(change, self._decimals)
            self._plans[version, change.namespace, change.relation] = plan
        return plan


def _source_of(pipeline: str, database: str) -> Callable[[Lsn, int | None, int | None, bool], str]:
    """The beginning of `source`, which the changes of a transaction share, up to the names."""
    head = f'{{"version":"{VERSION}","connector":"postgresql","name":{string(pipeline)}'
    db = f'"db":{string(database)}'

    @lru_cache(maxsize=TRANSACTIONS_KEPT)
    def source(commit_lsn: Lsn, xid: int | None, at_us: int | None, is_copied: bool) -> str:
        us = at_us or 0
        snapshot = "true" if is_copied else "false"
        return (
            f'{head},"ts_ms":{us // 1000},"snapshot":"{snapshot}",{db}'
            f',"sequence":"[\\"{commit_lsn:d}\\",\\"{commit_lsn:d}\\"]"'
            f',"ts_us":{us},"ts_ns":{us * 1000},"txId":{"null" if xid is None else xid}'
            f',"lsn":{commit_lsn:d},"xmin":null'
        )

    return source


def _tail(committed_at_us: int | None) -> str:
    us = committed_at_us or 0
    return f'","ts_ms":{us // 1000},"ts_us":{us},"ts_ns":{us * 1000},"transaction":null}}'


def _plan(change: Change, decimals: Decimals) -> Plan:
    columns = () if change.schema is None else change.schema.columns
    renderings = {c.name: _rendering(c, decimals) for c in columns}
    fields = {name: Member(name, label(name), r) for name, (r, _) in renderings.items()}
    unavailable = tuple(placeholder for _, placeholder in renderings.values())
    key = () if change.schema is None else change.schema.key
    names = f',"schema":{string(change.namespace)},"table":{string(change.relation)}}}'
    return Plan(tuple(fields.values()), unavailable, tuple(fields[n] for n in key), names)


def _before(plan: Plan, image: Image | None) -> str:
    """The old row; what the replica identity does not send is null there."""
    if image is None:
        return "null"
    values: list[str] = []
    for name, labelled, render in plan.fields:
        text = image.get(name)
        values.append(labelled + ("null" if text is None else render(text)))
    return f"{{{','.join(values)}}}"


def _after(plan: Plan, image: Image | None) -> str:
    """The new row; a value that was not sent is the placeholder."""
    if image is None:
        return "null"
    values: list[str] = []
    for (name, labelled, render), unavailable in zip(plan.fields, plan.unavailable, strict=True):
        if name in image:
            text = image[name]
            values.append(labelled + ("null" if text is None else render(text)))
        else:
            values.append(labelled + unavailable)
    return f"{{{','.join(values)}}}"


# --- values -----------------------------------------------------------------------------------


def _rendering(column: Column, decimals: Decimals) -> tuple[Render, str]:
    """The rendering of a column's values, and its placeholder."""
    value_type, digits = column.value_type, _digits(column)
    if value_type.endswith("[]"):
        element, _ = _rendering_of(value_type.removesuffix("[]"), digits, column, decimals)
        return _array(value_type, element), _array_placeholder(value_type)
    return _rendering_of(value_type, digits, column, decimals)


def _rendering_of(
    value_type: str, digits: int, column: Column, decimals: Decimals
) -> tuple[Render, str]:
    placeholder = string(UNAVAILABLE)
    if value_type in {"numeric", "money"}:
        return (_double if decimals == "double" else _decimal), placeholder
    if value_type == "bytea":
        return _bytes, _base64(UNAVAILABLE.encode())
    if value_type in {"bit", "varbit"}:
        is_one = value_type == "bit" and column.type_name.removesuffix("[]") in {"bit", "bit(1)"}
        return (_bit if is_one else _bits), _base64(UNAVAILABLE.encode())
    if value_type in {"time", "timestamp"}:
        return _TEMPORAL[value_type, digits <= MOST_DIGITS], placeholder
    return _RENDERINGS.get(value_type) or _plain(value_type), placeholder


def _plain(value_type: str) -> Render:
    """Booleans, integers and floats as JSON; everything else as its text."""
    is_json = value_type in {"bool", "int2", "int4", "int8", "oid", "float4", "float8"}
    return exact(value_type) if is_json else string


def _digits(column: Column) -> int:
    """Digits of a second's fraction that a column keeps; six unless its type says otherwise."""
    precision = re.search(r"\(([0-6])\)", column.type_name)
    return int(precision[1]) if precision else 6


def _decimal(text: str) -> str:
    return string("NAN" if text == "NaN" else re.sub(r"[$,]", "", text))


def _double(text: str) -> str:
    plain = re.sub(r"[$,]", "", text)
    try:
        value = float(plain)
    except ValueError:
        return string(text)
    return json.dumps(value) if abs(value) < float("inf") else string(text)


def _base64(data: bytes) -> str:
    return f'"{base64.b64encode(data).decode()}"'


def _bytes(text: str) -> str:
    try:
        return _base64(bytes.fromhex(text.removeprefix("\\x")))
    except ValueError:
        return string(text)


def _bit(text: str) -> str:
    return {"1": "true", "0": "false"}.get(text) or string(text)


def _bits(text: str) -> str:
    """The bits, the last one first, in as many bytes as they need."""
    if re.fullmatch("[01]*", text) is None:
        return string(text)
    return _base64(int(text or "0", 2).to_bytes((len(text) + 7) // 8, "little"))


_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?")
_DAY_US: Final = 86_400_000_000


def _date(text: str) -> str:
    days = _days(text)
    return string(text) if days is None else str(days)


def _days(text: str) -> int | None:
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day = map(int, match.groups())
    return (datetime(year, month, day, tzinfo=UTC) - EPOCH).days


def _midnight_us(text: str) -> int | None:
    """Microseconds since midnight."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds, fraction = match.groups(default="0")
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return whole * 1_000_000 + int(fraction.ljust(6, "0"))


def _timestamp_us(text: str) -> int | None:
    date, _, time = text.partition(" ")
    days, us = _days(date), _midnight_us(time)
    return None if days is None or us is None else days * _DAY_US + us


def _instant(parsed: Callable[[str], int | None], divisor: int) -> Render:
    infinities = {"infinity": POSITIVE_INFINITY, "-infinity": NEGATIVE_INFINITY}

    def render(text: str) -> str:
        us = parsed(text)
        return infinities.get(text) or string(text) if us is None else str(us // divisor)

    return render


def _zoned(text: str) -> str:
    """A timestamp with time zone, in UTC; all six digits of the second's fraction."""
    date, _, time = text.removesuffix("+00").partition(" ")
    if not text.endswith("+00") or _DATE.fullmatch(date) is None or not _TIME.fullmatch(time):
        return string(text)
    whole, _, fraction = time.partition(".")
    return f'"{date}T{whole}.{fraction.ljust(6, "0")}Z"'


def _zoned_time(text: str) -> str:
    match = re.fullmatch(r"([0-9:.]+)([-+])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?", text)
    us = _midnight_us(match[1]) if match else None
    if match is None or us is None:
        return string(text)
    offset = int(match[3]) * 3600 + int(match[4] or 0) * 60 + int(match[5] or 0)
    shifted = us + (-1 if match[2] == "+" else 1) * offset * 1_000_000
    seconds, fraction = divmod(shifted % _DAY_US, 1_000_000)
    tail = f".{fraction:06}".rstrip("0") if fraction else ""
    return f'"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{tail}Z"'


_INTERVAL: Final = re.compile(
    r"(?:(-?[0-9]+) years? ?)?(?:(-?[0-9]+) mons? ?)?(?:([-+]?[0-9]+) days? ?)?"
    r"(?:([-+]?)([0-9]+):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?)?"
)


def _interval(text: str) -> str:
    """Microseconds, with months of 365.25 / 12 days (`io.debezium.time.MicroDuration`)."""
    match = _INTERVAL.fullmatch(text.replace("+", "").strip())
    if match is None or not text:
        return string(text)
    years, months, days = (int(part or 0) for part in match.groups()[:3])
    sign, hours, minutes, seconds, fraction = match.groups(default="")[3:]
    clock = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    us = clock * 1_000_000 + int((fraction or "0").ljust(6, "0"))
    month_us = (years * 12 + months) * _DAY_US * 36525 // 1200
    return str(month_us + days * _DAY_US + (-us if sign == "-" else us))


def _point(text: str) -> str:
    match = re.fullmatch(r"\(([^,()]+),([^,()]+)\)", text)
    if match is None:
        return string(text)
    x, y = (exact("float8")(part) for part in match.groups())
    return f'{{"x":{x},"y":{y}}}'


def _hstore(text: str) -> str:
    """A string with JSON, in the form of Java's Jackson: without blanks."""
    kind = kind_of("hstore").kind
    rendered = renderer(kind, is_array=False)(text)
    if rendered is None:
        return string(text)
    return string(json.dumps(json.loads(rendered), ensure_ascii=False, separators=(",", ":")))


@cache
def _array(value_type: str, element: Render) -> Render:
    """Arrays of one dimension as JSON arrays; others, and unusual bounds, as text."""
    texts = exact("text[]")

    def render(text: str) -> str:
        array = texts(text)
        if not array.startswith("["):
            return array
        return _nested(json.loads(array), element)

    return render if kind_of(value_type).is_array else string


def _nested(value: Any, element: Render) -> str:
    if isinstance(value, list):
        return f"[{','.join(_nested(item, element) for item in value)}]"
    return "null" if value is None else element(value)


def _array_placeholder(value_type: str) -> str:
    """Of integers, the placeholder's bytes; of others, an array of the placeholder."""
    if value_type.removesuffix("[]") in {"int2", "int4", "int8"}:
        return json.dumps(list(UNAVAILABLE.encode()), separators=(",", ":"))
    return f"[{string(UNAVAILABLE)}]"


_TEMPORAL: Final[Mapping[tuple[str, bool], Render]] = {
    ("time", True): _instant(_midnight_us, 1000),
    ("time", False): _instant(_midnight_us, 1),
    ("timestamp", True): _instant(_timestamp_us, 1000),
    ("timestamp", False): _instant(_timestamp_us, 1),
}
_RENDERINGS: Final[Mapping[str, Render]] = {
    "date": _date,
    "timestamptz": _zoned,
    "timetz": _zoned_time,
    "interval": _interval,
    "point": _point,
    "hstore": _hstore,
}
