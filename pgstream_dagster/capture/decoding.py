"""
Decoding: units of whole transactions in, parts to land out.

Knows which schema version each relation has at each message. Postgres describes a relation before
its first row and again after every change of it, but without attnums; `resolve` adds them from the
catalog, which shows the present, not the moment of the message. Where that cannot be told, or the
key is another one, the relation gets a `gap` before the change and a copy is asked for: readers
never apply what they cannot place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.capture import partitions
from pgstream_dagster.capture.spool import uint32_at
from pgstream_dagster.capture.transactions import Heartbeat, LargeTransaction, Transactions, Unit
from pgstream_dagster.changelog.land import Arrival, Idle, Part
from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import GAP_ORDINAL, Op
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.schema.text import retyped
from pgstream_dagster.source.catalog import Resolved
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.columns import (
    ROW_KINDS,
    Block,
    Decoded,
    TransactionFields,
    decode,
    relations,
)
from pgstream_dagster.wire.ragged import escaped_columns

logger = logging.getLogger(__name__)

Resolve: TypeAlias = Callable[[pgoutput.Relation, TableSchema | None, int], Resolved]
"""A Relation message, the newest version known before it and the transaction it came in -> the
version with attnums."""

Leaves: TypeAlias = Callable[[int, Collection[int]], set[int]]
"""A relation and some others -> those that are its leaves, or may have been: `catalog.leaves`."""

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

SentAsLeaf: TypeAlias = Callable[[int, Collection[int], Lsn], None]
"""
Called with a partition tree, relations whose rows came under its name, and a position after some.

They are its leaves, or may have been. Called before those rows are handed on.
"""

OTHER_IDENTITY: Final = (
    "which rows its UPDATEs and DELETEs mean cannot be told from what partition {0!r} logs;"
    " run alter table {0} replica identity full"
)
OTHER_KEY: Final = "its key is another one"
OTHER_TEXT: Final = "a column became another type, whose values read otherwise"

_BEGIN, _COMMIT = ord("B"), ord("C")
_TRUNCATE: Final = ord("T")
_OF_GAP: Final = [
    *("epoch", "commit_lsn", "end_lsn", "xid", "committed_at"),
    *("namespace", "relation", "relation_id"),
]
PIECE_FIELDS: Final = 1 << 18
"""What one part of a large transaction holds: a NULL is one byte there, and 30 when decoded."""

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

    def __init__(  # noqa: PLR0913, PLR0917 - each is one thing that it asks or reports
        self,
        epoch: int,
        resolve: Resolve,
        leaves: Leaves,
        known: Mapping[int, tuple[Lsn, TableSchema]],
        copied: Copied,
        needs_copy: NeedsCopy,
        truncated: Truncated,
        sent_as_leaf: SentAsLeaf,
    ) -> None:
        self._epoch, self._resolve, self._needs_copy = epoch, resolve, needs_copy
        self._leaves_of, self._copied, self._truncated = leaves, copied, truncated
        self._sent_as_leaf = sent_as_leaf
        self._newest = dict(known)  # by oid, the version in force, and where it was last seen
        self._base: dict[int, Sequence[tuple[int, TableSchema]]] = {}
        self._pending: dict[int, pgoutput.Relation] = {}  # described, not used by any row yet
        self._untold: set[int] = set()  # described, and maybe leaves that nothing was told of
        self._leaves: dict[int, set[int]] = {}  # by root, as far as the catalog was asked
        self._blind: dict[int, str] = {}  # schema id -> why old rows do not say which row they were
        self._gaps: dict[int, int] = {}  # by relation, the commit LSN of the last one
        self._told: set[tuple[str, str]] = set()  # relations and what a warning said of them

    def parts(self, unit: Unit) -> Iterator[Arrival]:
        """
        The unit's changes, one part for small transactions, several for a large one.

        Raises:
            ProtocolError: damaged bytes.
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
        yield Part(CHANGES.empty_table(), Lsn(unit.fields.end_lsn), ends=False)  # is held for long
        for block in chain.from_iterable(map(_pieces, unit.blocks())):
            table, schemas, ordinal = self._decode(block, unit.fields, ordinal)
            del block  # only one of a row's forms is held while it waits and is written
            reach("spool.read")
            yield Part(table, Lsn(unit.fields.end_lsn), ends=False, schemas=schemas)
            del table
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
        self._tell_truncates(block, fields)
        done = decode(block, timeline, epoch=self._epoch, transaction=fields, first_ordinal=ordinal)
        table = self._placed(done, found)
        self._tell_escaped(table)
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
        self._untold -= block.left_out
        uses, versions = _uses(block), dict[int, list[tuple[int, TableSchema]]]()
        resting: list[tuple[int, pgoutput.Relation]] = []  # what no row uses: leaves, among others
        used: list[tuple[int, int, pgoutput.Relation]] = []
        for oid, said in self._statements(described).items():
            versions[oid] = []
            ends = [start for start, _ in said[1:]] + [len(block.starts)]
            for (start, what), end in zip(said, ends, strict=True):
                if isinstance(what, TableSchema):
                    versions[oid].append((start, what))
                elif (use := _first_use(uses.get(oid), start, end)) is not None:
                    used.append((start, use, what))
                    self._pending.pop(oid, None)
                    self._untold.discard(oid)
                else:
                    resting.append((start, what))
                    self._pending[oid] = what
                    if start != _START and oid not in block.left_out:
                        self._untold.add(oid)
        for start, use, what in used:
            at = fields or transaction_at(block, use)
            leaves = [relation for index, relation in resting if index < use]
            schema = self._resolved(what, at, found, leaves)
            versions[what.relation_id].append((start, schema))
            self._base[what.relation_id] = [(_START, schema)]
        if self._untold and uses:
            self._tell_leaves(resting, block, fields, max(int(rows[-1]) for rows in uses.values()))
        return {**self._base, **versions}

    def _tell_leaves(
        self,
        resting: Iterable[tuple[int, pgoutput.Relation]],
        block: Block,
        fields: TransactionFields | None,
        last_row: int,
    ) -> None:
        """
        Of relations that were described for rows under their root's name.

        Postgres describes a relation right before its first row; when the next row is another
        one's, it was a leaf then, or the row was rolled back. The catalog may have forgotten it:
        all trees with its columns count.
        """
        unused: dict[frozenset[tuple[str, int]], set[int]] = {}
        for start, relation in resting:
            if relation.relation_id in self._untold and start < last_row:
                self._untold.discard(relation.relation_id)
                unused.setdefault(partitions.shape(relation.columns), set()).add(
                    relation.relation_id
                )
        if not unused:
            return
        at = fields or transaction_at(block, last_row)
        for root, (_, schema) in self._newest.items():
            candidates = unused.get(partitions.shape(schema.columns), set()) - {root}
            if candidates and (leaves := self._leaves_of(root, candidates)):
                self._sent_as_leaf(root, leaves, Lsn(at.commit_lsn + 1))

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
        self,
        relation: pgoutput.Relation,
        at: TransactionFields,
        found: _Found,
        resting: Iterable[pgoutput.Relation],
    ) -> TableSchema:
        """The version with attnums; what follows from it is landed before its first row."""
        known = self._known(relation.relation_id, Lsn(at.commit_lsn))
        resolved = self._resolve(relation, known, at.xid)
        schema, blind = partitions.as_logged(
            resolved.schema, self._lesser_leaves(relation, resting)
        )
        if blind is not None:
            self._blind[schema.schema_id] = OTHER_IDENTITY.format(blind)
        self._newest[relation.relation_id] = Lsn(at.commit_lsn), schema
        if known is None or known.version != schema.version:
            found.schemas.append((schema, Lsn(at.commit_lsn)))
        if known is None or known.schema_id != schema.schema_id:
            self._needs_copy(relation.relation_id, Lsn(0), "its definition changed")
        gap = gap_reason(known, resolved)
        if gap:
            self._gaps[relation.relation_id] = at.commit_lsn
            found.gaps.append(gap_row(schema, at))
        if reason := gap or (retype_reason(known, schema) if known else None):
            # A snapshot shows what committed before its consistent point: one past the commit.
            self._needs_copy(relation.relation_id, Lsn(at.commit_lsn + 1), reason)
        return schema

    def _lesser_leaves(
        self, root: pgoutput.Relation, resting: Iterable[pgoutput.Relation]
    ) -> list[pgoutput.Relation]:
        """The leaves whose old rows have less than the root's description says."""
        newest = {relation.relation_id: relation for relation in resting}
        lesser = {oid: leaf for oid, leaf in newest.items() if partitions.logs_less(leaf, root)}
        known = self._leaves.setdefault(root.relation_id, set())
        if new := lesser.keys() - known:
            known |= self._leaves_of(root.relation_id, new)
        return [leaf for oid, leaf in lesser.items() if oid in known]

    def _placed(self, done: Decoded, found: _Found) -> pa.Table:
        """
        The rows that can be placed among the others; a gap and a copy for each that cannot.

        Readers pass over what follows the gap until the copy, so one row that cannot be told does
        not hold up the stream.
        """
        table, reasons = done.table, dict(done.unplaced)
        if self._blind:
            ids = table["schema_id"].to_pylist()
            has_old = pc.is_in(table["op"], pa.array([Op.UPDATE.value, Op.DELETE.value]))
            reasons |= {
                row: self._blind[ids[row]]
                for row in np.flatnonzero(has_old.to_numpy()).tolist()
                if ids[row] in self._blind
            }
        if not reasons:
            return table
        wishes: dict[int, tuple[Lsn, str]] = {}
        rows = table.select(_OF_GAP).take(pa.array(sorted(reasons), pa.int64())).to_pylist()
        for row, reason in zip(rows, (reasons[at] for at in sorted(reasons)), strict=True):
            oid, commit_lsn = row["relation_id"], row["commit_lsn"]
            self._warn(row, f"{reason}; what follows is passed over until its next copy")
            if self._gaps.get(oid) != commit_lsn:
                self._gaps[oid] = commit_lsn
                found.gaps.append(row | {"ordinal": GAP_ORDINAL, "op": Op.GAP.value})
                wishes[oid] = Lsn(commit_lsn + 1), reason
        for oid, (since, reason) in wishes.items():
            self._needs_copy(oid, since, reason)
        kept = np.ones(len(table), dtype=np.bool_)
        kept[list(reasons)] = False
        return table.filter(pa.array(kept))

    def _tell_escaped(self, table: pa.Table) -> None:
        """Of values that are no text in the database's encoding."""
        if table["payload"].null_count == len(table):
            return
        is_row = pc.and_(pc.is_valid(table["payload"]), pc.is_valid(table["relation_id"]))
        marked = table.filter(is_row).select(["namespace", "relation", "payload"])
        for row in marked.group_by(marked.column_names).aggregate([]).to_pylist():
            for name in escaped_columns(row["payload"]):
                self._warn(row, f"a value of column {name!r} is not UTF-8; it is landed escaped")

    def _warn(self, row: Mapping[str, Any], said: str) -> None:
        """Once for a relation."""
        relation = f"{row['namespace']}.{row['relation']}"
        if (relation, said) not in self._told:
            self._told.add((relation, said))
            logger.warning("table %r: %s", relation, said)

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
    kinds = block.kinds
    begins = np.flatnonzero(kinds[: index + 1] == _BEGIN)
    commits = np.flatnonzero(kinds[index:] == _COMMIT)
    if not len(begins) or not len(commits):
        raise ProtocolError(f"message {index} of a block is outside of every transaction")
    begin = pgoutput.parse(_message(block, int(begins[-1])), streamed=False)
    commit = pgoutput.parse(_message(block, index + int(commits[0])), streamed=False)
    assert isinstance(begin, pgoutput.Begin)
    assert isinstance(commit, pgoutput.Commit)
    return TransactionFields(begin.commit_lsn, commit.end_lsn, begin.committed_at_us, begin.xid)


def _pieces(block: Block) -> Iterator[Block]:
    """The messages in runs of about `PIECE_FIELDS` fields, whatever their bytes."""
    at = block.starts + (10 if block.streamed else 6)  # of the Int16 count of a row's first tuple
    counts = np.where(np.isin(block.kinds, ROW_KINDS), uint32_at(block.data, at) >> 16, 0)
    cuts = np.flatnonzero(np.diff(np.cumsum(counts) // PIECE_FIELDS)) + 1
    bounds = [0, *cuts.tolist(), len(block.starts)]
    pieces = [
        replace(block, starts=block.starts[begin:end], ends=block.ends[begin:end])
        for begin, end in pairwise(bounds)
    ]
    del block
    while pieces:
        yield pieces.pop(0)


def _message(block: Block, index: int) -> bytes:
    return bytes(block.data[block.starts[index] : block.ends[index]])


def _uses(block: Block) -> dict[int, np.ndarray]:
    """By relation, the indexes of the messages that need its description, ascending."""
    kinds = block.kinds
    rows = np.flatnonzero(np.isin(kinds, ROW_KINDS))
    at = block.starts[rows] + (5 if block.streamed else 1)
    oids = uint32_at(block.data, at)
    uses = {int(oid): rows[oids == oid] for oid in np.unique(oids)}
    for index, said in _truncates(block):
        for oid in said.relation_ids:
            uses[oid] = np.sort(np.append(uses.get(oid, np.empty(0, np.int64)), index))
    return uses


def _truncates(block: Block) -> Iterator[tuple[int, pgoutput.Truncate]]:
    for index in np.flatnonzero(block.kinds == _TRUNCATE):
        said = pgoutput.parse(_message(block, int(index)), streamed=block.streamed)
        assert isinstance(said, pgoutput.Truncate)
        yield int(index), said


def _first_use(indexes: np.ndarray | None, start: int, end: int) -> int | None:
    """The first of the ascending `indexes` in [start, end)."""
    if indexes is None:
        return None
    place = int(np.searchsorted(indexes, start))
    return int(indexes[place]) if place < len(indexes) and indexes[place] < end else None
