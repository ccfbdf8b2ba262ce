"""
Our message: one change as one line of JSON, the same for every sink. Pure.

`envelope.schema.json`, beside this module, is its JSON Schema. Numbers have every digit; a column
that was not sent is absent and listed under `missing`, while NULL is `null`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, Image, Key
from pgstream_dagster.sinks.columns import (
    Member,
    by_group,
    images,
    joined,
    keys,
    numbers,
    octets_of,
    of_changes,
    transactions,
)
from pgstream_dagster.values.exact import exact, string

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

TRANSACTIONS_KEPT: Final = 512
"""Texts of transactions that are kept: in a batch their changes follow each other."""

_COLUMNS: Final = ("key", "old_key", "before", "after", "ordinal", "op")


class Plan(NamedTuple):
    """What the messages of one version of a relation have in common."""

    head: str
    columns: Sequence[Member]
    key: Sequence[Member]


class Envelope:
    """
    Changes of one pipeline as messages: `Envelope("shop")(change)` is JSON, as UTF-8.

    The same change always has the same bytes.
    """

    def __init__(self, pipeline: str) -> None:
        self._head_of: Final = _head_of(pipeline)
        self._plans: Final[dict[tuple[int, str, str], Plan]] = {}

    def __call__(self, change: Change) -> bytes:
        """The message of a change, without a line end."""
        plan, after = self._plan(change), change.after
        parts = (
            self._head_of(change.epoch, change.commit_lsn, change.xid, change.committed_at_us),
            f'{change.number}","ordinal":{change.ordinal},"op":"{change.op}"{plan.head}',
            _key(plan, change.key),
            ',"old_key":',
            _key(plan, change.old_key),
            ',"before":',
            "null" if change.before is None else _members(plan.columns, change.before),
            ',"after":',
            "null" if after is None else _members(plan.columns, after),
            ',"missing":[]' if after is None else _missing(plan, after),
            "}" if change.payload is None else f',"payload":{string(change.payload)}}}',
        )
        return "".join(parts).encode()

    def of_changes(self, changes: Sequence[Change]) -> Iterator[bytes]:
        """The message of each change, in order."""
        return of_changes(changes, self.of_version, self)

    def of_version(self, rows: pa.Table, first: Change) -> list[bytes] | None:
        """
        The messages of rows of one version of a table, without Python per row.

        `None`: columns do not express them. `first` is the change of the first row.
        """
        plan = self._plan(first)
        columns = {name: rows.column(name).combine_chunks() for name in _COLUMNS}
        key, old_key = (keys(columns[name], plan.key) for name in ("key", "old_key"))
        before, after = (images(columns[name], plan.columns) for name in ("before", "after"))
        if key is None or old_key is None or before is None or after is None:
            return None
        group, heads = transactions(rows, "epoch", "commit_lsn", "xid", "committed_at")
        head = by_group([self._head_of(e, Lsn(lsn), *rest) for e, lsn, *rest in heads], group)
        place = (head, numbers(rows), '","ordinal":', columns["ordinal"].cast(pa.string()))
        texts = joined(
            *(*place, ',"op":"', columns["op"], f'"{plan.head}', key.fill_null("null")),
            *(',"old_key":', old_key.fill_null("null")),
            *(',"before":', before.objects.fill_null("null")),
            *(',"after":', after.objects.fill_null("null")),
            *(',"missing":', after.missing, "}"),
        )
        return octets_of(texts)

    def _plan(self, change: Change) -> Plan:
        version = 0 if change.schema is None else change.schema.schema_id
        plan = self._plans.get((version, change.namespace, change.relation))
        if plan is None:
            plan = _plan(change)
            self._plans[version, change.namespace, change.relation] = plan
        return plan


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the message."""
    file = resources.files("pgstream_dagster.sinks").joinpath("envelope.schema.json")
    return json.loads(file.read_text(encoding="utf-8"))


@cache
def label(name: str) -> str:
    """The name of a JSON member, with its colon."""
    return f"{string(name)}:"


@lru_cache(maxsize=TRANSACTIONS_KEPT)
def instant(microseconds: int) -> str:
    """A time since 1970 as in RFC 3339, in UTC and with microseconds."""
    text = (EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def _head_of(pipeline: str) -> Callable[[int, Lsn, int | None, int | None], str]:
    """The beginning of a message, which the changes of a transaction share, up to the ordinal."""
    name = string(pipeline)

    @lru_cache(maxsize=TRANSACTIONS_KEPT)
    def head(epoch: int, commit_lsn: Lsn, xid: int | None, committed_at_us: int | None) -> str:
        at = "null" if committed_at_us is None else f'"{instant(committed_at_us)}"'
        return (
            f'{{"pipeline":{name},"epoch":{epoch},"commit_lsn":"{commit_lsn}"'
            f',"xid":{"null" if xid is None else xid},"committed_at":{at}'
            f',"event_id":"{epoch}-{commit_lsn}-'
        )

    return head


def _plan(change: Change) -> Plan:
    schema = change.schema
    names = f',"namespace":{string(change.namespace)},"relation":{string(change.relation)}'
    if schema is None:
        return Plan(f'{names},"schema_id":null,"key":', (), ())
    columns = {c.name: Member(c.name, label(c.name), exact(c.value_type)) for c in schema.columns}
    return Plan(
        f'{names},"schema_id":"{schema.schema_id}","key":',
        tuple(columns.values()),
        tuple(columns[name] for name in schema.key),
    )


def _key(plan: Plan, key: Key | None) -> str:
    if key is None:
        return "null"
    values = (
        f"{name}{'null' if text is None else render(text)}"
        for (_, name, render), text in zip(plan.key, key, strict=True)
    )
    return f"{{{','.join(values)}}}"


def _members(columns: Sequence[Member], image: Image) -> str:
    values: list[str] = []
    for column, name, render in columns:
        if column in image:
            text = image[column]
            values.append(name + ("null" if text is None else render(text)))
    if len(values) != len(image):
        values += _others(columns, image)
    return f"{{{','.join(values)}}}"


def _others(columns: Sequence[Member], image: Image) -> Iterator[str]:
    """Values under names that the relation does not have; they come from modifiers."""
    for name in sorted(image.keys() - {column for column, _, _ in columns}):
        text = image[name]
        yield label(name) + ("null" if text is None else string(text))


def _missing(plan: Plan, after: Image) -> str:
    names = (string(name) for name, _, _ in plan.columns if name not in after)
    return f',"missing":[{",".join(names)}]'
