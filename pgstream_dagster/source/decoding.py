"""
Decoding: units of whole transactions in, parts to land out.

Knows which schema version each relation has at each message. Postgres describes a relation before
its first row and again after every change of it, but without attnums; `resolve` adds them from the
catalog, which shows the present, not the moment of the message. Where that cannot be told, or the
key is another one, the relation gets a `gap` before the change and a copy is asked for: readers
never apply what they cannot place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from pgstream_dagster.changelog.land import Arrival, Idle, Part
from pgstream_dagster.changelog.layout import CHANGES
from pgstream_dagster.changes import GAP_ORDINAL, Op
from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.schema.text import retyped
from pgstream_dagster.source import partitions, pgoutput
from pgstream_dagster.source.catalog import Resolved
from pgstream_dagster.source.columns import Block, TransactionFields, decode, relations
from pgstream_dagster.source.partitions import Branch
from pgstream_dagster.source.spool import uint32_at
from pgstream_dagster.source.transactions import Heartbeat, LargeTransaction, Transactions, Unit

Resolve: TypeAlias = Callable[[pgoutput.Relation, TableSchema | None, int], Resolved]
"""A Relation message, the newest version known before it and the transaction it came in -> the
version with attnums."""

Copied: TypeAlias = Callable[[int], tuple[Lsn, TableSchema] | None]
"""
A relation -> where its newest copy in the log lies, and the version of its rows.

Copies come later than changes that follow them, so it is asked at each description.
"""

NeedsCopy: TypeAlias = Callable[[int, Lsn, str], None]
"""
Called with a relation, where its newest copy must lie at the earliest, and why.

0 stands for wherever it is: see whether there is one, and whether the table was rewritten since.
Called before the change that asks for it is handed on, and durable when it returns.
"""

Truncated: TypeAlias = Callable[[int, int, TransactionFields], None]
"""
Called with a relation, the (sub-)transaction that truncated it and the transaction that is part of,
before the change is handed on.
"""

OTHER_KEY: Final = "its key is another one"
OTHER_TEXT: Final = "a column became another type, whose values read otherwise"

_BEGIN, _COMMIT, _TYPE = ord("B"), ord("C"), ord("Y")
_ROWS: Final = np.frombuffer(b"IUD", dtype=np.uint8)
_TRUNCATE: Final = ord("T")
_START: Final = -1  # before a block's first message

Statement: TypeAlias = tuple[int, pgoutput.Relation | TableSchema]
"""From which message on, and what Postgres said of the relation (or what that resolved to)."""


@dataclass(slots=True)
class _Found:
    """What one block brought to light."""

    schemas: list[tuple[TableSchema, Lsn]] = field(default_factory=list)
    gaps: list[dict[str, object]] = field(default_factory=list)


class Decoder:
    """
    The relations of one connection, as Postgres has described them so far.

    A new connection starts with a new decoder: Postgres describes every relation again.
    """

    def __init__(
        self,
        epoch: int,
        resolve: Resolve,
        known: Mapping[int, tuple[Lsn, TableSchema]],
        copied: Copied,
        needs_copy: NeedsCopy,
        truncated: Truncated,
    ) -> None:
        self._epoch, self._resolve, self._needs_copy = epoch, resolve, needs_copy
        self._copied, self._truncated = copied, truncated
        self._newest = dict(known)  # by oid, the version in force, and where it was last seen
        self._base: dict[int, Sequence[tuple[int, TableSchema]]] = {}
        self._pending: dict[int, pgoutput.Relation] = {}  # described, not used by any row yet
        self._leaves: dict[int, dict[int, pgoutput.Relation]] = {}  # by root, as last described
        self._last: pgoutput.Relation | None = None  # described by the end of the block before

    def parts(self, unit: Unit) -> Iterator[Arrival]:
        """
        The unit's changes, one part for small transactions, several for a large one.

        Raises:
            ProtocolError: damaged bytes.
            UnsentValue: an INSERT without one of its values.
            PartitionIdentity: a partition's old rows do not say which row they were.
        """
        match unit:
            case Heartbeat():
                yield Idle(unit.wal_end, unit.wants_reply)
            case Transactions():
                table, schemas, _ = self._decode(unit.block, None, 0)
                yield Part(table, unit.end_lsn, schemas=schemas)
            case LargeTransaction():
                yield from self._large(unit)

    def _large(self, unit: LargeTransaction) -> Iterator[Part]:
        ordinal = 0
        for block in unit.blocks():
            table, schemas, ordinal = self._decode(block, unit.fields, ordinal)
            reach("spool.read")
            yield Part(table, Lsn(unit.fields.end_lsn), ends=False, schemas=schemas)
        unit.file.close()
        yield Part(CHANGES.empty_table(), Lsn(unit.fields.end_lsn), ends=True)

    def _decode(
        self, block: Block, fields: TransactionFields | None, ordinal: int
    ) -> tuple[pa.Table, tuple[tuple[TableSchema, Lsn], ...], int]:
        """The block's changes, the schema versions they brought, the next ordinal."""
        timeline, found = self._base, _Found()
        described = relations(block)
        if described or self._pending:
            timeline = self._timeline(block, fields, described, found)
        self._last = described[-1][1] if described and _ends_with(block, described[-1][0]) else None
        self._tell_truncates(block, fields)
        done = decode(block, timeline, epoch=self._epoch, transaction=fields, first_ordinal=ordinal)
        table = done.table
        if found.gaps:
            gaps = pa.Table.from_pylist(found.gaps, CHANGES)
            table = pa.concat_tables([gaps, table]).sort_by(
                [("commit_lsn", "ascending"), ("ordinal", "ascending")]
            )
        return table, tuple(found.schemas), done.next_ordinal

    def _tell_truncates(self, block: Block, fields: TransactionFields | None) -> None:
        told: dict[tuple[int, int], TransactionFields] = {}
        for index, said in _truncates(block):
            at = fields or transaction_at(block, index)
            for oid in said.relation_ids:
                told[oid, at.xid if said.xid is None else said.xid] = at
        for (oid, xid), at in told.items():
            self._truncated(oid, xid, at)

    def _timeline(
        self,
        block: Block,
        fields: TransactionFields | None,
        described: Sequence[tuple[int, pgoutput.Relation]],
        found: _Found,
    ) -> Mapping[int, Sequence[tuple[int, TableSchema]]]:
        """
        Which version each relation has from which message on.

        A description is resolved only when a row uses it: what an aborted sub-transaction
        described may never have existed.
        """
        uses, timeline = _uses(block), dict(self._base)
        branches = self._branches(block, described, uses)
        for oid, said in self._statements(described).items():
            ends = [start for start, _ in said[1:]] + [len(block.starts)]
            versions: list[tuple[int, TableSchema]] = []
            for (start, what), end in zip(said, ends, strict=True):
                if isinstance(what, TableSchema):
                    versions.append((start, what))
                elif (use := _first_use(uses.get(oid), start, end)) is not None:
                    at = fields or transaction_at(block, use)
                    self._learn(branch for branch in branches.get(oid, ()) if branch.at <= start)
                    versions.append((start, self._resolved(what, at, found)))
                    self._base[oid] = [(_START, versions[-1][1])]
                    self._pending.pop(oid, None)
                else:
                    self._pending[oid] = what
            self._learn(branches.get(oid, ()))
            timeline[oid] = versions
        return timeline

    def _branches(
        self,
        block: Block,
        described: Sequence[tuple[int, pgoutput.Relation]],
        uses: Mapping[int, np.ndarray],
    ) -> dict[int, list[Branch]]:
        """By root, the leaves that the block describes."""
        kinds = _kinds(block)
        types = {int(index) for index in np.flatnonzero(kinds == _TYPE)}
        before = [] if self._last is None else [(_START, self._last)]
        found: dict[int, list[Branch]] = {}
        for branch in partitions.branches([*before, *described], types, uses):
            found.setdefault(branch.root.relation_id, []).append(branch)
        return found

    def _learn(self, branches: Iterable[Branch]) -> None:
        for _, root, leaf in branches:
            self._leaves.setdefault(root.relation_id, {})[leaf.relation_id] = leaf

    def _statements(
        self, described: Sequence[tuple[int, pgoutput.Relation]]
    ) -> dict[int, list[Statement]]:
        """Per relation spoken of, what was in force before the block and each description in it."""
        said: dict[int, list[Statement]] = {
            oid: [(_START, relation)] for oid, relation in self._pending.items()
        }
        for index, relation in described:
            oid = relation.relation_id
            if oid not in said:
                said[oid] = list(self._base.get(oid, ()))
            said[oid].append((index, relation))
        return said

    def _resolved(
        self, relation: pgoutput.Relation, at: TransactionFields, found: _Found
    ) -> TableSchema:
        """The version with attnums; what follows from it is landed before its first row."""
        known = self._known(relation.relation_id, Lsn(at.commit_lsn))
        resolved = self._resolve(relation, known, at.xid)
        leaves = self._leaves.get(relation.relation_id, {})
        schema = partitions.as_logged(resolved.schema, leaves.values())
        self._newest[relation.relation_id] = Lsn(at.commit_lsn), schema
        if known is None or known.version != schema.version:
            found.schemas.append((schema, Lsn(at.commit_lsn)))
        if known is None or known.schema_id != schema.schema_id:
            self._needs_copy(relation.relation_id, Lsn(0), "its definition changed")
        gap = gap_reason(known, resolved)
        if gap:
            found.gaps.append(gap_row(schema, at))
        if reason := gap or (retype_reason(known, schema) if known else None):
            # A snapshot shows what committed before its consistent point: one past the commit.
            self._needs_copy(relation.relation_id, Lsn(at.commit_lsn + 1), reason)
        return schema

    def _known(self, relation_id: int, commit_lsn: Lsn) -> TableSchema | None:
        """The newest version before a change: the stream's, or that of a copy since."""
        seen, copy = self._newest.get(relation_id), self._copied(relation_id)
        before = [seen] if seen is not None else []
        if copy is not None and copy[0] <= commit_lsn:
            before.append(copy)
        # Of a copy and a transaction at one position the copy comes first.
        return max(before, key=itemgetter(0))[1] if before else None


def gap_reason(known: TableSchema | None, resolved: Resolved) -> str | None:
    """Why rows after this version cannot be placed among those before it; `None`: they can."""
    if known is None:
        return None
    if not resolved.certain:
        return "its columns cannot be told from the catalog"
    if known.key_attnums != resolved.schema.key_attnums:
        return OTHER_KEY
    if {*retyped(known, resolved.schema)} & {*resolved.schema.key}:
        return OTHER_TEXT
    return None


def retype_reason(known: TableSchema, schema: TableSchema) -> str | None:
    """Why the log's older rows show other values than the source; `None`: they do not."""
    return OTHER_TEXT if retyped(known, schema) else None


def gap_row(schema: TableSchema, at: TransactionFields) -> dict[str, object]:
    """Changes of the relation are missing before this transaction: readers wait for its copy."""
    return {
        "epoch": schema.epoch,
        "commit_lsn": at.commit_lsn,
        "ordinal": GAP_ORDINAL,
        "end_lsn": at.end_lsn,
        "xid": at.xid,
        "committed_at": at.committed_at_us,
        "op": Op.GAP.value,
        "namespace": schema.namespace,
        "relation": schema.name,
        "relation_id": schema.relation_id,
    }


def transaction_at(block: Block, index: int) -> TransactionFields:
    """The transaction around message `index` of a block of whole transactions."""
    kinds = _kinds(block)
    begins = np.flatnonzero(kinds[: index + 1] == _BEGIN)
    commits = np.flatnonzero(kinds[index:] == _COMMIT)
    if not len(begins) or not len(commits):
        raise ProtocolError(f"message {index} of a block is outside of every transaction")
    begin = pgoutput.parse(_message(block, int(begins[-1])), streamed=False)
    commit = pgoutput.parse(_message(block, index + int(commits[0])), streamed=False)
    assert isinstance(begin, pgoutput.Begin)
    assert isinstance(commit, pgoutput.Commit)
    return TransactionFields(begin.commit_lsn, commit.end_lsn, begin.committed_at_us, begin.xid)


def _message(block: Block, index: int) -> bytes:
    return bytes(block.data[block.starts[index] : block.ends[index]])


def _kinds(block: Block) -> np.ndarray:
    return np.frombuffer(block.data, dtype=np.uint8)[block.starts]


def _uses(block: Block) -> dict[int, np.ndarray]:
    """By relation, the indexes of the messages that need its description, ascending."""
    kinds = _kinds(block)
    rows = np.flatnonzero(np.isin(kinds, _ROWS))
    at = block.starts[rows] + (5 if block.streamed else 1)
    oids = uint32_at(block.data, at)
    uses = {int(oid): rows[oids == oid] for oid in np.unique(oids)}
    for index, said in _truncates(block):
        for oid in said.relation_ids:
            uses[oid] = np.sort(np.append(uses.get(oid, np.empty(0, np.int64)), index))
    return uses


def _truncates(block: Block) -> Iterator[tuple[int, pgoutput.Truncate]]:
    for index in np.flatnonzero(_kinds(block) == _TRUNCATE):
        said = pgoutput.parse(_message(block, int(index)), streamed=block.streamed)
        assert isinstance(said, pgoutput.Truncate)
        yield int(index), said


def _ends_with(block: Block, index: int) -> bool:
    """Whether nothing but types comes after message `index`."""
    return bool((_kinds(block)[index + 1 :] == _TYPE).all())


def _first_use(indexes: np.ndarray | None, start: int, end: int) -> int | None:
    """The first of the ascending `indexes` in [start, end)."""
    if indexes is None:
        return None
    place = int(np.searchsorted(indexes, start))
    return int(indexes[place]) if place < len(indexes) and indexes[place] < end else None
