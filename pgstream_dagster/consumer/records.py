"""One record of a topic as a change: checked, and its values as Postgres text again. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

import msgspec

from pgstream_dagster.consumer.versions import Version
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Image, Key, Place
from pgstream_dagster.schema.changes import Op

LANDED: Final = frozenset({Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE, Op.READ})
"""What a sink sends unless it is asked for markers."""

WITH_ROW: Final = frozenset({Op.INSERT, Op.UPDATE, Op.READ})

WRITER: Final = "remove what writes it from the topic"
DIFFERENCES: Final = "build this pipeline in a new lake from a topic that has every row once"

_EVENT_ID: Final = re.compile(r"[0-9]+-([0-9A-F]+/[0-9A-F]+)-(?:[0-9]+[.])?[0-9]+")

Row: TypeAlias = dict[str, msgspec.Raw]


class Unfit(Exception):
    """A record cannot be landed; `remedy` is what helps."""

    def __init__(self, reason: str, remedy: str = WRITER) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(reason)


class Message(msgspec.Struct, gc=False):
    """Our message, as `sinks.envelope` writes it."""

    event_id: str
    pipeline: str
    epoch: int
    commit_lsn: str
    ordinal: int
    op: str
    namespace: str
    relation: str
    schema_id: str | None
    key: Row | None
    old_key: Row | None
    before: Row | None
    after: Row | None
    xid: int | None
    committed_at: datetime | None


class Read(NamedTuple):
    """One change; `place` is its place in the source's order."""

    event_id: str
    place: Place
    op: str
    version: Version
    key: Key | None
    old_key: Key | None
    before: Image | None
    after: Image | None
    xid: int | None
    committed_at: datetime | None

    @property
    def committed_at_us(self) -> int | None:
        """Microseconds since 1970."""
        at = self.committed_at
        return None if at is None else round(at.timestamp() * 1_000_000)


_DECODER: Final = msgspec.json.Decoder(Message)


def message(value: bytes) -> Message:
    """
    The message in a record's value.

    Raises:
        Unfit: it is none of ours.
    """
    try:
        decoded = _DECODER.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unfit(f"it is no message of a pgstream sink ({error})") from None
    if _EVENT_ID.fullmatch(decoded.event_id) is None:
        raise Unfit("its event_id has another form")
    return decoded


def change(decoded: Message, version: Version, *, partitions: int) -> Read:
    """
    The change in a message.

    Shape:
        partitions: how many the record's topic has.

    Raises:
        Unfit: the log cannot have it in its order, or a value is not one of its column's type.
    """
    if decoded.op not in LANDED:
        raise Unfit(f"a {decoded.op!r} marker is not landed", DIFFERENCES)
    if partitions > 1 and version.is_spread and _concerns_other_rows(decoded):
        raise Unfit(
            f"{_CROSSING[decoded.op]} of table {version.schema.full_name!r}, whose rows are spread"
            f" over {partitions} partitions, has no order with them",
            "write the topic with 'key: table', or with one partition",
        )
    if (decoded.op in WITH_ROW) == (decoded.after is None):
        raise Unfit(f"its op is {decoded.op!r} and 'after' does not fit that")
    try:
        return Read(
            decoded.event_id,
            Place(Lsn.parse(decoded.commit_lsn), decoded.ordinal),
            decoded.op,
            version,
            _key(version, decoded.key),
            _key(version, decoded.old_key),
            _image(version, decoded.before),
            _image(version, decoded.after),
            decoded.xid,
            decoded.committed_at,
        )
    except (ValueError, KeyError, IndexError, PgstreamError) as error:
        raise Unfit(f"a value or key does not fit its column ({type(error).__name__})") from None


_CROSSING: Final[Mapping[str, str]] = {
    Op.TRUNCATE: "a truncate",
    Op.UPDATE: "a change of the key",
}


def _concerns_other_rows(decoded: Message) -> bool:
    return decoded.op == Op.TRUNCATE or (decoded.op == Op.UPDATE and decoded.old_key is not None)


def _key(version: Version, row: Row | None) -> Key | None:
    if row is None:
        return None
    return tuple(version.text(name, row[name]) for name in version.schema.key)


def _image(version: Version, row: Row | None) -> Image | None:
    return None if row is None else {name: version.text(name, raw) for name, raw in row.items()}
