"""
DDL in the stream: what the event triggers of `sql/schema` report of a table. Pure, no I/O.

A report is a transactional logical message, so it has its place among the changes of rows and is
gone if its (sub-)transaction is rolled back. It has what the catalog says of one table after a
command; the command's text is for readers and is never parsed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema

PREFIX: Final = "pgstream.ddl"
"""Of the logical messages."""

FORMAT: Final = 1
"""Of their content; another one is not understood."""


Oid: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Attnum: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 15) - 1)]
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]


class DdlEvent(StrEnum):
    """What a report says."""

    DESCRIBE = "describe"  # `table` is as described after the command
    DROP = "drop"  # `table` is gone; of it there are oid and names
    UNKNOWN = "unknown"  # a command was not reported: any table may have changed


class DdlColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A column that exists after the command, as `pg_attribute` has it.

    `missing`: what rows older than the column show, as an array of one element prints.
    `value_type` is as in `Column`; `labels` are those of an enum, in their order.
    """

    attnum: Attnum
    name: Name
    type_oid: Oid
    typmod: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
    type_name: str
    value_type: str
    not_null: bool
    may_be_null: bool  # though it is `not_null`: the constraint is not validated
    default: str | None
    missing: str | None
    generated: str  # '', 's' stored, 'v' virtual
    identity: str  # '', 'a' always, 'd' by default
    comment: str | None
    labels: tuple[str, ...] | None

    def column(self) -> Column:
        """As schema versions have it."""
        return Column(
            name=self.name,
            attnum=self.attnum,
            type_oid=self.type_oid,
            type_name=self.type_name,
            typmod=self.typmod,
            not_null=self.not_null,
            default=self.default,
            missing=None if self.missing is None else only_element(self.missing),
            value_type=self.value_type,
        )


class PartitionParent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The partitioned table that a table is a partition of."""

    relation_id: Oid
    namespace: Name
    name: Name


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    How a publication includes a table.

    `attnums`: its column list, `None` without one. `generated`: whether stored generated columns
    are published without a list.
    """

    attnums: tuple[int, ...] | None
    generated: bool


class DdlTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A table after a command; of one that was dropped only the first three fields count.

    `key`: the attnums that identify a row under its replica identity, as `source/relation` gives
    them. `publications`: those that include it, by name. `is_locked`: whether no other session
    could alter it until the commit; else a later version may have been committed before.
    """

    relation_id: Oid
    namespace: Name
    name: Name
    kind: str = ""  # 'r' ordinary, 'p' partitioned
    persistence: str = ""  # 'p' logged, 'u' unlogged
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    key: tuple[int, ...] | None = None
    comment: str | None = None
    partition_of: PartitionParent | None = None
    publications: dict[str, Published] = {}
    columns: tuple[DdlColumn, ...] = ()
    is_locked: bool = True

    def schema(self, epoch: int, publication: str) -> TableSchema | None:
        """The version that a publication shows of the table; `None` if it does not include it."""
        if publication not in self.publications:
            return None
        columns = tuple(column.column() for column in self.shown(publication))
        return TableSchema(
            epoch=epoch,
            relation_id=self.relation_id,
            namespace=self.namespace,
            name=self.name,
            identity=self.identity,
            columns=columns,
            key=self._key(columns),
        )

    def shown(self, publication: str) -> tuple[DdlColumn, ...]:
        """The columns that a publication shows; none if it does not include the table."""
        published = self.publications.get(publication)
        if published is None:
            return ()
        return tuple(column for column in self.columns if _is_shown(column, published))

    def without_values(self) -> DdlTable:
        """Without the texts that a value of a row may be in."""
        columns = tuple(
            msgspec.structs.replace(column, default=None, missing=None, comment=None, labels=None)
            for column in self.columns
        )
        return msgspec.structs.replace(self, columns=columns, comment=None)

    def _key(self, columns: tuple[Column, ...]) -> tuple[str, ...]:
        """The key's columns, in its order; none if one is not published, or may be NULL."""
        if self.identity is ReplicaIdentity.NOTHING:
            return ()
        names = {column.attnum: column.name for column in columns}
        uncertain = {column.attnum for column in self.columns if column.may_be_null}
        key = self.key or ()
        if not names.keys() >= {*key} or uncertain & {*key}:
            return ()
        return tuple(names[attnum] for attnum in key)


class DdlReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    One report: what became of one table by one command.

    `token` is the secret of our event triggers, without which any role could write a report.
    `xid` is the 32-bit id of the (sub-)transaction that ran the command, which Postgres does not
    say of the messages of a transaction that it sends in parts. `tag` is the command's tag, `text`
    what the client sent, which may be several commands; it ends with `CUT` where it is longer than
    a report has room for.
    """

    format: int
    token: str
    xid: Oid
    event: DdlEvent
    tag: str
    text: str | None = None
    table: DdlTable | None = None

    @property
    def filled(self) -> int | None:
        """The table, if the command created it with its rows, which come before the report."""
        if self.table is None or self.tag not in FILLED_WHEN_CREATED:
            return None
        return self.table.relation_id

    @property
    def payload(self) -> str:
        """What the log has of it."""
        assert self.table is not None
        event: Literal["describe", "drop"] = "drop" if self.event is DdlEvent.DROP else "describe"
        payload = DdlPayload(self.tag, self.text, event, self.table)
        return msgspec.json.encode(payload).decode()


class DdlPayload(msgspec.Struct, frozen=True):
    """
    What a command did to one table: the payload of a `ddl` row of the change log.

    `tag` is the command's tag; `text` is what the client sent, which may be several commands, and
    ends with ` ...` where it was too long. With `describe`, `table` is the table after the command;
    with `drop` it is gone, and of it there are oid and names.
    """

    tag: str
    text: str | None
    event: Literal["describe", "drop"]
    table: DdlTable


@dataclass(frozen=True, slots=True)
class DdlEntry:
    """
    What one command did to one relation; (epoch, relation, commit LSN, ordinal) identify it.

    `schema` is the version after the command; of a DROP, the last one before it. `description` is
    what the source reported of the table and of its published columns.
    """

    schema: TableSchema
    commit_lsn: Lsn
    ordinal: int
    committed_at_us: int
    tag: str
    text: str | None
    is_drop: bool
    description: DdlTable | None

    @property
    def place(self) -> tuple[int, int, Lsn, int]:
        """What identifies it."""
        return self.schema.epoch, self.schema.relation_id, self.commit_lsn, self.ordinal

    def to_json(self) -> str:
        """The JSON of its schema with members of its own, which `TableSchema.from_json` ignores."""
        return json.dumps(
            {
                **json.loads(self.schema.to_json()),
                "ordinal": self.ordinal,
                "committed_at_us": self.committed_at_us,
                "tag": self.tag,
                "text": self.text,
                "is_drop": self.is_drop,
                "description": msgspec.to_builtins(self.description),
            },
            sort_keys=True,
        )


FILLED_WHEN_CREATED: Final = frozenset({"CREATE TABLE AS", "SELECT INTO"})
"""Tags of the commands that report a table after its rows."""

CUT: Final = " ..."
"""Ends the text of a command that is longer than a report has room for."""

_decoder = msgspec.json.Decoder(DdlReport)


def parse(content: bytes) -> DdlReport:
    """
    The report in a message.

    Raises:
        ProtocolError: it is none: another program used the prefix, or a later version of ours.
    """
    try:
        report = _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a logical message {PREFIX!r} that is no report of DDL") from error
    columns = () if report.table is None else report.table.columns
    names, attnums = {c.name for c in columns}, {c.attnum for c in columns}
    if min(len(names), len(attnums)) < len(columns):
        raise ProtocolError("a report of DDL with two columns of one name or number")
    if report.format != FORMAT or (report.table is None) != (report.event is DdlEvent.UNKNOWN):
        raise ProtocolError(f"a report of DDL in format {report.format}, not {FORMAT}")
    return report


def continued(schema: TableSchema, earlier: TableSchema | None) -> TableSchema:
    """
    A version as it follows from the one before.

    What rows older than a column show is what they showed before: the catalog forgets it at the
    next rewrite.
    """
    if earlier is None:
        return schema
    before = {column.attnum: column for column in earlier.columns}
    columns = [
        replace(column, missing=older.missing, modified=older.modified)
        if (older := before.get(column.attnum))
        else column
        for column in schema.columns
    ]
    return replace(schema, columns=tuple(columns))


def only_element(array: str) -> str:
    """
    The element of an array of one, as `array_out` prints it.

    Parsed here and not by a cast to text[]: an element is quoted for the delimiter of its own type,
    so the box `(1,1),(0,0)` is not quoted and would be read as two.

    Source:
        https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
    """
    inner = array[1:-1]
    if inner.startswith('"'):
        return re.sub(r"\\(.)", r"\1", inner[1:-1], flags=re.DOTALL)
    return inner


def _is_shown(column: DdlColumn, published: Published) -> bool:
    if published.attnums is not None:
        return column.attnum in published.attnums
    return not column.generated or (column.generated == "s" and published.generated)
