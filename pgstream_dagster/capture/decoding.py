"""
Decoding: batches of whole transactions in, batches of changes out.

Knows which schema version each relation has at each message. Postgres describes a relation before
its first row and again after every change of it, but without attnums. Reports of DDL have them,
where the source has our event triggers; else `resolve` adds them from the catalog, which shows the
present, not the moment of the message. Where the version is uncertain, or the key changed, the
relation gets a `gap` before the change and a copy is requested: readers never apply what they
cannot place.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.capture import partitions
from pgstream_dagster.capture.reporting import NoReports, Reporting
from pgstream_dagster.capture.reports import in_order, parts_in_order, reports
from pgstream_dagster.capture.transactions import LargeTransaction, TransactionBatch, Transactions
from pgstream_dagster.changelog import markers
from pgstream_dagster.changelog.land import Arrival, DecodedBatch, Keepalive, SchemaVersion
from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.align import shapes
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.ddl import PREFIX, DdlEntry, DdlEvent, DdlReport
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema
from pgstream_dagster.schema.text import retyped
from pgstream_dagster.source.catalog import Resolved
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.columns import DdlRow, Decoded, SchemaTimeline, decode
from pgstream_dagster.wire.messages import (
    MessageBatch,
    TransactionFields,
    relations,
    transaction_between,
)
from pgstream_dagster.wire.ragged import escaped_columns

logger = logging.getLogger(__name__)

Resolve: TypeAlias = Callable[[pgoutput.Relation, TableSchema | None, int], Resolved]
"""A Relation message, the newest version before it and the transaction it came in -> the version
with attnums."""

Leaves: TypeAlias = Callable[[int, Collection[int], Collection[int]], set[int]]
"""
A relation, some others, and those of them described right before a row of it -> those that are its
leaves, or may have been: `catalog.leaves`.
"""

Copied: TypeAlias = Callable[[int], tuple[Lsn, TableSchema] | None]
"""
A relation -> where its newest copy in the log lies, and the version of its rows.

Copies come later than changes that follow them, so it is called at each description.
"""

NeedsCopy: TypeAlias = Callable[[int, Lsn, str], None]
"""
Called with a relation, where its newest copy must lie at the earliest, and why.

0 means anywhere: check whether there is one, and whether the table was rewritten since. Called
before the change that needs it is handed on, and durable when it returns.
"""

Modify: TypeAlias = Callable[[pa.Table, Iterable[TableSchema]], pa.Table]
"""Changes and the versions that they name -> the changes as they are stored."""

Truncated: TypeAlias = Callable[[int, int, TransactionFields], None]
"""
Called with a relation, the (sub-)transaction that truncated it and the transaction which that is
part of, before the change is handed on.
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
NO_IDENTITY: Final = (
    "which rows its UPDATEs and DELETEs mean cannot be told: its key is not sent whole, or may be"
    " NULL; run alter table {0} replica identity full"
)
OTHER_KEY: Final = "its key is another one"
OTHER_TEXT: Final = "a column has another type or modifier, with which its values read otherwise"

_BEGIN, _COMMIT = ord("B"), ord("C")

BATCH_FIELDS: Final = 1 << 18
"""What one batch of a large transaction holds: a NULL is one byte there, and 30 when decoded."""

_START: Final = -1  # before a batch's first message

Description: TypeAlias = tuple[int, pgoutput.Relation | TableSchema | DdlReport]
"""From which message on, and how Postgres described the relation (or what that resolved to)."""


@dataclass(slots=True)
class _Additions:
    """
    What one batch adds to the log besides its rows.

    `schemas` are in order; those of reports have their place once the rows have theirs. `ddl` are
    the rows of reports by index, `None` for a report that is left out.
    """

    schemas: list[tuple[TableSchema, Lsn] | _Reported] = field(default_factory=list)
    gaps: list[markers.Row] = field(default_factory=list)
    ddl: dict[int, DdlRow | None] = field(default_factory=dict)

    def versions(self, changes: pa.Table) -> tuple[SchemaVersion, ...]:
        """What the log of schemas gets with these changes."""
        rows = changes.filter(pc.equal(changes["op"], Op.DDL.value))
        ordinals = dict(zip(sorted(self.rows_at), rows["ordinal"].to_pylist(), strict=True))
        return tuple(
            version.entry(ordinals[version.at]) if isinstance(version, _Reported) else version
            for version in self.schemas
        )

    @property
    def rows_at(self) -> set[int]:
        """The indexes of the reports that become rows."""
        return {at for at, row in self.ddl.items() if row is not None}


@dataclass(frozen=True, slots=True)
class _Reported:
    """A version that a report, the message `at`, has brought."""

    at: int
    schema: TableSchema
    report: DdlReport
    transaction: TransactionFields

    def entry(self, ordinal: int) -> DdlEntry:
        report, fields = self.report, self.transaction
        return DdlEntry(
            schema=self.schema,
            commit_lsn=fields.commit_lsn,
            ordinal=ordinal,
            committed_at_us=fields.committed_at_us,
            tag=report.tag,
            text=report.text,
            is_drop=report.event is DdlEvent.DROP,
            description=report.table,
        )


class Decoder:
    """
    The relations of one connection, as Postgres has described them so far.

    A new connection starts with a new decoder: Postgres describes every relation again.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is one thing that it queries or reports
        self,
        epoch: int,
        resolve: Resolve,
        leaves: Leaves,
        in_force: Mapping[int, tuple[Lsn, TableSchema]],
        copied: Copied,
        needs_copy: NeedsCopy,
        truncated: Truncated,
        sent_as_leaf: SentAsLeaf,
        modify: Modify = lambda changes, _: changes,
        reporting: Reporting = NoReports(),  # noqa: B008 - it has no state
    ) -> None:
        self._epoch, self._resolve, self._needs_copy = epoch, resolve, needs_copy
        self._leaves_of, self._copied, self._truncated = leaves, copied, truncated
        self._sent_as_leaf, self._modify, self._reporting = sent_as_leaf, modify, reporting
        self._newest = dict(in_force)  # by oid, the version in force, and where it was last seen
        self._base: dict[int, Sequence[tuple[int, TableSchema]]] = {}
        self._pending: dict[int, pgoutput.Relation] = {}  # described, not used by any row yet
        self._unreported: set[int] = set()  # described, and maybe leaves that were not reported
        self._leaves: dict[int, set[int]] = {}  # by root, as far as the catalog was queried
        self._blind: dict[int, str] = {}  # schema id -> why old rows do not say which row they were
        self._gaps: dict[int, Lsn] = {}  # by relation, the commit LSN of the last one
        self._warned: set[tuple[str, str]] = set()  # relations and the warnings about them
        self._dropped: set[int] = set()  # relations whose DROP was reported
        self._unseen: set[int] = set()  # relations that were not published at their last report

    def decode(self, batch: TransactionBatch) -> Iterator[Arrival]:
        """
        The batch's changes: in one batch for small transactions, in several for a large one.

        Raises:
            ProtocolError: damaged bytes.
        """
        match batch:
            case Keepalive():
                yield batch
            case Transactions():
                table, schemas, _ = self._decode(in_order(batch.messages), None, 0)
                yield DecodedBatch(table, batch.end_lsn, schemas=schemas)
            case LargeTransaction():
                yield from self._large(batch)

    def described_name(self, relation_id: int) -> str | None:
        """The name that rows of a relation come under by now; for any thread."""
        in_force = self._base.get(relation_id)
        return in_force[-1][1].full_name if in_force else None

    def _large(self, transaction: LargeTransaction) -> Iterator[DecodedBatch]:
        ordinal, fields = 0, transaction.fields
        end_lsn, nothing = fields.end_lsn, CHANGES.empty_table()
        yield DecodedBatch(nothing, end_lsn, ends=False)  # is held for long
        for messages in chain.from_iterable(map(_cut, parts_in_order(transaction))):
            table, schemas, ordinal = self._decode(messages, fields, ordinal)
            del messages  # only one of a row's forms is held while it waits and is written
            reach("spool.read")
            yield DecodedBatch(table, end_lsn, ends=False, schemas=schemas)
            del table
        transaction.file.close()
        yield DecodedBatch(nothing, end_lsn, ends=True)

    def _decode(
        self, batch: MessageBatch, fields: TransactionFields | None, ordinal: int
    ) -> tuple[pa.Table, tuple[SchemaVersion, ...], int]:
        """The batch's changes, the schema versions they brought, the next ordinal."""
        timeline, additions = self._base, _Additions()
        described = [*relations(batch), *self._reports(batch, fields, additions)]
        if described or self._pending:
            timeline = self._timeline(
                batch, fields, sorted(described, key=itemgetter(0)), additions
            )
        self._report_truncates(batch, fields)
        done = decode(
            batch,
            timeline,
            epoch=self._epoch,
            transaction=fields,
            first_ordinal=ordinal,
            ddl=additions.ddl,
        )
        schemas = additions.versions(done.table)
        versions = (schema for starts in timeline.values() for _, schema in starts)
        table = self._modify(self._placed(done, additions), versions)
        self._warn_of_escaped(table)
        if additions.gaps:
            table = pa.concat_tables([markers.rows_table(additions.gaps), table]).sort_by(
                [("commit_lsn", "ascending"), ("ordinal", "ascending")]
            )
        return table, schemas, done.next_ordinal

    def _reports(
        self, batch: MessageBatch, fields: TransactionFields | None, additions: _Additions
    ) -> list[tuple[int, DdlReport]]:
        """The reports of tables, by index; others are left out."""
        taken: list[tuple[int, DdlReport]] = []
        missed: list[Lsn] = []
        for at, report in reports(batch).items():
            additions.ddl[at] = None
            if report is None or not self._reporting.is_ours(report):
                self._warn_of_foreign(report)
            elif report.event is DdlEvent.UNKNOWN:
                missed.append((fields or transaction_at(batch, at)).commit_lsn)
            else:
                taken.append((at, report))
        if missed:
            self._reporting.missed(max(missed))
        return taken

    def _warn_of_foreign(self, report: DdlReport | None) -> None:
        """Once for a connection: any role may write messages, any number of them."""
        reason = "that is no report" if report is None else "that our event triggers did not write"
        if (PREFIX, reason) not in self._warned:
            self._warned.add((PREFIX, reason))
            logger.warning("a logical message %r %s is ignored", PREFIX, reason)

    def _report_truncates(self, batch: MessageBatch, fields: TransactionFields | None) -> None:
        transactions: dict[tuple[int, int], TransactionFields] = {}
        for index, truncate in _truncates(batch):
            at = fields or transaction_at(batch, index)
            for oid in truncate.relation_ids:
                transactions[oid, at.xid if truncate.xid is None else truncate.xid] = at
        for (oid, xid), at in transactions.items():
            self._truncated(oid, xid, at)

    def _timeline(
        self,
        batch: MessageBatch,
        fields: TransactionFields | None,
        described: Sequence[tuple[int, pgoutput.Relation | DdlReport]],
        additions: _Additions,
    ) -> SchemaTimeline:
        """
        Which version each relation has from which message on.

        A description is resolved only when a row uses it: what an aborted sub-transaction
        described may never have existed.
        """
        uses, versions = _uses(batch), dict[int, list[tuple[int, TableSchema]]]()
        unused: list[tuple[int, pgoutput.Relation]] = []  # leaves, among others
        maybe_leaves: list[tuple[int, pgoutput.Relation]] = []
        used: list[tuple[int, int, pgoutput.Relation | DdlReport]] = []
        for oid, descriptions in self._descriptions(described).items():
            versions[oid] = []
            ends = [start for start, _ in descriptions[1:]] + [len(batch.starts)]
            for (start, what), end in zip(descriptions, ends, strict=True):
                if isinstance(what, TableSchema):
                    versions[oid].append((start, what))
                elif isinstance(what, DdlReport):
                    used.append((start, start, what))
                    self._pending.pop(oid, None)  # Postgres describes the table again
                elif (use := _first_use(uses.get(oid), start, end)) is not None:
                    used.append((start, use, what))
                    self._pending.pop(oid, None)
                else:
                    unused.append((start, what))
                    self._pending[oid] = what
                    is_known = start == _START and oid not in self._unreported
                    if not is_known and not _has_left_out(batch, oid, start, end):
                        maybe_leaves.append((start, what))
        for start, use, what in used:
            at = fields or transaction_at(batch, use)
            if isinstance(what, DdlReport):
                self._take_report(start, what, at, versions, additions)
                continue
            before = [relation for index, relation in unused if index < use]
            schema = self._resolved(what, at, additions, before)
            versions[what.relation_id].append((start, schema))
            self._base[what.relation_id] = [(_START, schema)]
        last_row = max((int(rows[-1]) for rows in uses.values()), default=_START)
        self._unreported = {leaf.relation_id for at, leaf in maybe_leaves if at >= last_row}
        if leaves := [(start, leaf) for start, leaf in maybe_leaves if start < last_row]:
            self._report_leaves(leaves, fields or transaction_at(batch, last_row), uses)
        return {**self._base, **versions}

    def _report_leaves(
        self,
        described: Iterable[tuple[int, pgoutput.Relation]],
        at: TransactionFields,
        uses: Mapping[int, np.ndarray],
    ) -> None:
        """
        Report relations that were described for rows under their root's name.

        Postgres describes a relation right before its first row; when the next row is another
        relation's, it was a leaf then, or the row was rolled back. It may have rows of its own
        later, after another description. The catalog may have forgotten it: all trees with its
        columns count, and the tree of the next row in any case.
        """
        by_shape: dict[frozenset[tuple[str, int]], set[int]] = {}
        beside: dict[int, set[int]] = {}
        for start, relation in described:
            oid = relation.relation_id
            by_shape.setdefault(partitions.shape(relation.columns), set()).add(oid)
            beside.setdefault(_next_used(uses, start), set()).add(oid)
        for root, (_, schema) in self._newest.items():
            candidates = by_shape.get(partitions.shape(schema.columns), set()) - {root}
            near = candidates & beside.get(root, set())
            if candidates and (leaves := self._leaves_of(root, candidates, near)):
                self._sent_as_leaf(root, leaves, Lsn(at.commit_lsn + 1))

    def _descriptions(
        self, described: Sequence[tuple[int, pgoutput.Relation | DdlReport]]
    ) -> dict[int, list[Description]]:
        """Per relation described, what was in force before the batch and each description in it."""
        descriptions: dict[int, list[Description]] = {
            oid: [(_START, relation)] for oid, relation in self._pending.items()
        }
        for index, description in described:
            oid = _relation_of(description)
            if oid not in descriptions:
                descriptions[oid] = list(self._base.get(oid, ()))
            descriptions[oid].append((index, description))
        return descriptions

    def _take_report(
        self,
        at: int,
        report: DdlReport,
        transaction: TransactionFields,
        versions: dict[int, list[tuple[int, TableSchema]]],
        additions: _Additions,
    ) -> None:
        """
        Give a report its row, and the version that it brings.

        Rows continue under the version that they were described with until Postgres describes them
        again, unless the reported one differs in nothing that rows show.
        """
        assert report.table is not None
        oid = report.table.relation_id
        earlier = self._version_before(oid, transaction.commit_lsn)
        schema = None
        if report.event is DdlEvent.DESCRIBE:
            schema = self._reporting.schema(report.table, earlier)
            if not report.table.is_locked:
                if oid in self._dropped or not _is_layout(schema, earlier):
                    # Another session may have altered it since, and committed before.
                    self._reporting.missed(transaction.commit_lsn)
                    return
                schema = _renamed(schema, earlier, report.tag)
        else:
            self._dropped.add(oid)
        if schema is None:
            self._unseen.add(oid)
        else:
            self._unseen.discard(oid)
        shown = schema or earlier
        if shown is None:
            return  # neither published now nor before
        stored = self._reporting.shown(report)
        additions.ddl[at] = DdlRow(oid, stored.payload)
        additions.schemas.append(_Reported(at, shown, stored, transaction))
        if schema is not None:
            self._adopt(schema, earlier, transaction, additions)
        in_force = versions[oid][-1][1] if versions[oid] else None
        versions[oid].append((at, shown))
        if in_force is None:
            return
        if is_like(in_force, shown):
            self._base[oid] = [(_START, shown)]
        else:
            versions[oid].append((at + 1, in_force))

    def _resolved(
        self,
        relation: pgoutput.Relation,
        at: TransactionFields,
        additions: _Additions,
        unused: Iterable[pgoutput.Relation],
    ) -> TableSchema:
        """The version with attnums; what follows from it is landed before its first row."""
        oid, commit_lsn = relation.relation_id, at.commit_lsn
        last = self._last_seen(oid, commit_lsn)
        earlier = None if last is None else last[1]
        if last is not None and self._is_certain(relation, at.xid, *last):
            resolved = Resolved(last[1], certain=True)
        else:
            resolved = self._resolve(relation, earlier, at.xid)
        schema, blind = partitions.as_logged(resolved.schema, self._lesser_leaves(relation, unused))
        if blind is not None:
            self._blind[schema.schema_id] = OTHER_IDENTITY.format(blind)
        elif not schema.key and schema.identity is not ReplicaIdentity.FULL:
            # Of a table without any key Postgres refuses UPDATEs and DELETEs, and sends none.
            self._blind[schema.schema_id] = NO_IDENTITY.format(schema.full_name)
        if earlier is None or earlier.version != schema.version:
            additions.schemas.append((schema, commit_lsn))
        self._adopt(schema, earlier, at, additions, certain=resolved.certain)
        return schema

    def _is_certain(
        self, relation: pgoutput.Relation, xid: int, seen_at: Lsn, schema: TableSchema
    ) -> bool:
        """
        Whether a relation still has a version: every DDL since was reported, and it had none.

        The catalog may say otherwise: a superuser can run DDL without event triggers.
        """
        if relation.relation_id in self._unseen or not is_described(schema, relation):
            return False
        since = self._reporting.exact_since()
        is_exact = since is not None and since <= seen_at
        return is_exact and not self._reporting.is_contradicted(schema, xid)

    def _adopt(
        self,
        schema: TableSchema,
        earlier: TableSchema | None,
        at: TransactionFields,
        additions: _Additions,
        *,
        certain: bool = True,
    ) -> None:
        """Note a relation's newest version, and what the change to it needs: a gap, a copy."""
        oid, commit_lsn = schema.relation_id, at.commit_lsn
        self._newest[oid] = commit_lsn, schema
        if earlier is None or earlier.schema_id != schema.schema_id:
            self._needs_copy(oid, Lsn(0), "its definition changed")
        if earlier is None:
            return
        reason = gap_reason(earlier, schema, certain=certain)
        if reason:
            if self._is_first_gap(oid, commit_lsn):
                additions.gaps.append(markers.gap_before(schema, at))
        elif retyped(earlier, schema):  # older rows show other values than the source
            reason = OTHER_TEXT
        if reason:
            # A snapshot shows what committed before its consistent point: one past the commit.
            self._needs_copy(oid, Lsn(commit_lsn + 1), reason)

    def _lesser_leaves(
        self, root: pgoutput.Relation, unused: Iterable[pgoutput.Relation]
    ) -> list[pgoutput.Relation]:
        """The leaves whose old rows have less than the root's description says."""
        newest = {relation.relation_id: relation for relation in unused}
        lesser = {oid: leaf for oid, leaf in newest.items() if partitions.logs_less(leaf, root)}
        leaves = self._leaves.setdefault(root.relation_id, set())
        if new := lesser.keys() - leaves:
            leaves |= self._leaves_of(root.relation_id, new, ())
        return [leaf for oid, leaf in lesser.items() if oid in leaves]

    def _placed(self, done: Decoded, additions: _Additions) -> pa.Table:
        """
        The rows that can be placed among the others; a gap and a copy for each that cannot.

        Readers skip what follows the gap until the copy, so a row that cannot be placed does not
        hold up the stream.
        """
        table, reasons = done.table, dict(done.unplaced)
        if self._blind:
            has_old = pc.is_in(table["op"], pa.array([Op.UPDATE.value, Op.DELETE.value]))
            is_blind = pc.is_in(table["schema_id"], pa.array([*self._blind], pa.int64()))
            rows = np.flatnonzero(pc.and_(has_old, is_blind).to_numpy())
            ids = table["schema_id"].take(pa.array(rows)).to_pylist()
            reasons |= {
                row: self._blind[schema_id]
                for row, schema_id in zip(rows.tolist(), ids, strict=True)
            }
        if not reasons:
            return table
        requests: dict[int, tuple[Lsn, str]] = {}
        left_out = table.select(markers.GAP_COLUMNS).take(pa.array(sorted(reasons), pa.int64()))
        for row, (_, reason) in zip(left_out.to_pylist(), sorted(reasons.items()), strict=True):
            oid, commit_lsn = row["relation_id"], Lsn(row["commit_lsn"])
            self._warn(row, f"{reason}; what follows is passed over until its next copy")
            if self._is_first_gap(oid, commit_lsn):
                additions.gaps.append(markers.gap_instead_of(row))
                requests[oid] = Lsn(commit_lsn + 1), reason
        for oid, (since, reason) in requests.items():
            self._needs_copy(oid, since, reason)
        kept = np.ones(len(table), dtype=np.bool_)
        kept[list(reasons)] = False
        return table.filter(pa.array(kept))

    def _is_first_gap(self, relation_id: int, commit_lsn: Lsn) -> bool:
        """Whether a transaction gives the relation no gap yet: it would be at the same place."""
        is_first = self._gaps.get(relation_id) != commit_lsn
        self._gaps[relation_id] = commit_lsn
        return is_first

    def _warn_of_escaped(self, table: pa.Table) -> None:
        """Warn of values that are no text in the database's encoding."""
        if table["payload"].null_count == len(table):
            return
        no_row = pc.is_in(table["op"], pa.array([Op.MESSAGE.value, Op.DDL.value]))
        is_row = pc.and_(pc.is_valid(table["payload"]), pc.invert(no_row))
        marked = table.filter(is_row).select(["namespace", "relation", "payload"])
        for row in marked.group_by(marked.column_names).aggregate([]).to_pylist():
            for name in escaped_columns(row["payload"]):
                self._warn(row, f"a value of column {name!r} is not UTF-8; it is landed escaped")

    def _warn(self, row: Mapping[str, Any], warning: str) -> None:
        """Once for a relation."""
        relation = f"{row['namespace']}.{row['relation']}"
        if (relation, warning) not in self._warned:
            self._warned.add((relation, warning))
            logger.warning("table %r: %s", relation, warning)

    def _version_before(self, relation_id: int, commit_lsn: Lsn) -> TableSchema | None:
        """The newest version before a change: the stream's, or that of a copy since."""
        last = self._last_seen(relation_id, commit_lsn)
        return None if last is None else last[1]

    def _last_seen(self, relation_id: int, commit_lsn: Lsn) -> tuple[Lsn, TableSchema] | None:
        """The same, and where it was last seen."""
        seen, copy = self._newest.get(relation_id), self._copied(relation_id)
        before = [seen] if seen is not None else []
        if copy is not None and copy[0] <= commit_lsn:
            before.append(copy)
        # Of a copy and a transaction at one position the copy comes first.
        return max(before, key=itemgetter(0)) if before else None


def gap_reason(earlier: TableSchema, schema: TableSchema, *, certain: bool) -> str | None:
    """Why rows after this version cannot be placed among those before it; `None`: they can."""
    if not certain:
        return "its columns cannot be told from the catalog"
    if earlier.key_attnums != schema.key_attnums:
        return OTHER_KEY
    if {*retyped(earlier, schema)} & {*schema.key}:
        return OTHER_TEXT
    return None


def is_described(schema: TableSchema, relation: pgoutput.Relation) -> bool:
    """Whether Postgres would describe a version so, but for its name."""
    flagged = {column.name for column in relation.columns if column.in_key}
    has_its_key = schema.identity is ReplicaIdentity.FULL or flagged == {*schema.key}
    has_its_columns = shapes(relation.columns) == shapes(schema.columns)
    return has_its_columns and schema.identity is relation.identity and has_its_key


def is_like(schema: TableSchema, other: TableSchema) -> bool:
    """Whether rows look the same under both versions."""
    is_same = schema.identity is other.identity and schema.key == other.key
    return is_same and shapes(schema.columns) == shapes(other.columns)


def _renamed(
    schema: TableSchema | None, earlier: TableSchema | None, tag: str
) -> TableSchema | None:
    """A version of a table that was not locked, under the name that its own commands gave it."""
    if schema is None or earlier is None:
        return schema
    namespace = schema.namespace if tag == "ALTER SCHEMA" else earlier.namespace
    return replace(schema, namespace=namespace, name=earlier.name)


def _is_layout(schema: TableSchema | None, earlier: TableSchema | None) -> bool:
    """Whether a version has the columns of the one before it, if there are both."""
    if schema is None or earlier is None:
        return schema is earlier
    return schema.attnums == earlier.attnums and is_like(schema, earlier)


def _relation_of(description: pgoutput.Relation | DdlReport) -> int:
    if isinstance(description, pgoutput.Relation):
        return description.relation_id
    assert description.table is not None
    return description.table.relation_id


def transaction_at(batch: MessageBatch, index: int) -> TransactionFields:
    """The transaction around message `index` of a batch of whole transactions."""
    begins = np.flatnonzero(batch.kinds[: index + 1] == _BEGIN)
    commits = np.flatnonzero(batch.kinds[index:] == _COMMIT)
    if not len(begins) or not len(commits):
        raise ProtocolError(f"message {index} of a batch is outside of every transaction")
    return transaction_between(batch, int(begins[-1]), index + int(commits[0]))


def _cut(batch: MessageBatch) -> Iterator[MessageBatch]:
    """The messages in batches of about `BATCH_FIELDS` fields, whatever their bytes."""
    # The Int16 count of a row's first tuple follows its relation and a tag.
    counts = np.where(batch.is_row, batch.octets.u2(batch.bodies + 5), 0)
    cuts = np.flatnonzero(np.diff(np.cumsum(counts) // BATCH_FIELDS)) + 1
    bounds = [0, *cuts.tolist(), len(batch.starts)]
    batches = [batch.part(begin, end) for begin, end in pairwise(bounds)]
    del batch
    while batches:
        yield batches.pop(0)


def _uses(batch: MessageBatch) -> dict[int, np.ndarray]:
    """By relation, the indexes of the messages that need its description, ascending."""
    rows, oids = np.flatnonzero(batch.is_row), batch.relation_ids(batch.is_row)
    uses = {int(oid): rows[oids == oid] for oid in np.unique(oids)}
    for index, truncate in _truncates(batch):
        for oid in truncate.relation_ids:
            uses[oid] = np.sort(np.append(uses.get(oid, np.empty(0, np.int64)), index))
    return uses


def _truncates(batch: MessageBatch) -> Iterator[tuple[int, pgoutput.Truncate]]:
    return ((at, m) for at, m in batch.controls.items() if isinstance(m, pgoutput.Truncate))


def _next_used(uses: Mapping[int, np.ndarray], start: int) -> int:
    """The relation of the first row after message `start`; there is one."""
    nearest = {oid: _first_use(rows, start, sys.maxsize) for oid, rows in uses.items()}
    return min((use, oid) for oid, use in nearest.items() if use is not None)[1]


def _has_left_out(batch: MessageBatch, oid: int, start: int, end: int) -> bool:
    """Whether rows of a relation were left out between message `start` and message `end`."""
    left_out = batch.left_out_of(oid)
    first = 0 if start == _START else batch.offset(start)
    return bool(np.any((first <= left_out) & (left_out < batch.offset(end))))


def _first_use(indexes: np.ndarray | None, start: int, end: int) -> int | None:
    """The first of the ascending `indexes` in [start, end)."""
    if indexes is None:
        return None
    place = int(np.searchsorted(indexes, start))
    return int(indexes[place]) if place < len(indexes) and indexes[place] < end else None
