"""
Which tables need a copy, and why: what was requested, and what the catalog says of them.

A table needs a copy when it has none (it joined the publication), when one was requested and none
is new enough (a key or a type changed, changes are missing), or when its data changed without rows:
a rewrite, an attached or detached partition, columns or rows that the publication did not show. The
last is detected by comparing what the ledger recorded at the copy with the catalog: versions of the
catalog's rows rather than values, which may have changed back. VACUUM FULL and CLUSTER look like a
rewrite and cost a copy that was not needed.

A request is a fact in the ledger before the change that causes it is landed, so no crash loses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pgstream_dagster.capture.decoding import OTHER_KEY, OTHER_TEXT
from pgstream_dagster.changelog.ledger import CopyRecord, Ledger
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.schema.text import FIRST_USER_OID, TEXT_OID, VARCHAR_OID, retyped
from pgstream_dagster.source.publication import PublishedTable

REWRITTEN: Final = "its storage was rewritten, or its partitions changed"

READS_OTHERWISE: Final = "values of it read otherwise: a type or a name that they use was changed"

SENT_AS_LEAF: Final = "its changes came under the name of a partitioned table"

PRIMARY_KEY: Final = "primary key"
PRIMARY_KEY_FILE: Final = "file of the primary key"
"""Both are keys of `Versions.types`."""

COPY_REQUESTED: Final = "copy wanted"
"""Kind of the ledger's fact that relations need a copy from a position on."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A copy from `since` or later is needed."""

    since: Lsn
    reason: str


def request_copy(
    ledger: Ledger, epoch: int, relation_ids: Collection[int], since: Lsn, reason: str
) -> None:
    """Record that relations need a copy from `since` or later; durable when this returns."""
    facts = {"relation_ids": sorted(relation_ids), "since": str(since), "reason": reason}
    ledger.record(COPY_REQUESTED, epoch, facts)


def requested_copies(ledger: Ledger, epoch: int) -> dict[int, CopyRequest]:
    """Relation -> the newest request, fulfilled or not."""
    requests: dict[int, CopyRequest] = {}
    for fact_epoch, facts in ledger.facts(COPY_REQUESTED):
        if fact_epoch != epoch:
            continue
        request = CopyRequest(Lsn.parse(facts["since"]), facts["reason"])
        for oid in facts["relation_ids"]:
            if oid not in requests or request.since >= requests[oid].since:
                requests[oid] = request
    return requests


def awaited_copies(
    copies: Mapping[int, CopyRecord], requests: Mapping[int, CopyRequest], reason: str
) -> set[int]:
    """The relations whose newest request has this reason, and no copy yet that fulfils it."""
    return {
        oid
        for oid, request in requests.items()
        if request.reason == reason
        and (oid not in copies or copies[oid].consistent_point < request.since)
    }


def due_copies(
    tables: Sequence[PublishedTable],
    copies: Mapping[int, CopyRecord],
    requests: Mapping[int, CopyRequest],
    history: Iterable[tuple[Lsn, TableSchema]] = (),
) -> dict[int, str]:
    """
    Which published relations need a copy, and why.

    Shape:
        history: the versions of all relations, each with the position from which it holds. Read
            before `tables`, so that no version is newer than they are.
    """
    due: dict[int, str] = {}
    versions: dict[int, list[tuple[Lsn, TableSchema]]] = {}
    for since, schema in history:
        versions.setdefault(schema.relation_id, []).append((since, schema))
    for table in tables:
        oid = table.relation_id
        copy = copies.get(oid)
        if copy is None:
            due[oid] = "it has no copy"
        elif oid in requests and copy.consistent_point < requests[oid].since:
            due[oid] = requests[oid].reason
        elif not table.sheds_rows and _has_other_files(copy, table):
            due[oid] = REWRITTEN
        elif reason := reads_otherwise(copy, table):
            due[oid] = reason
        elif _shows_more(copy, table):
            due[oid] = "the publication was changed, or shows other columns or rows of it"
        elif reason := _mismatch(copy, versions.get(oid, ())):
            due[oid] = reason
        elif _is_outdated(copy, table, versions.get(oid, ())):
            due[oid] = READS_OTHERWISE
    return due


def _has_other_files(copy: CopyRecord, table: PublishedTable) -> bool:
    return copy.members != table.members or copy.versions.edges != table.versions.edges


def _is_outdated(
    copy: CopyRecord, table: PublishedTable, versions: Sequence[tuple[Lsn, TableSchema]]
) -> bool:
    """
    Whether a column has another type than in the newest version of the log.

    A column that is newer than the copy may have been retyped, without a rewrite, after the last
    row that the stream has of it. Domains are left out: no version says what they are based on.
    """
    newest = [v for at, v in versions if copy.consistent_point <= at][-1:]
    return any(
        table.versions.types.get(f"column {column.attnum}", oid) != oid
        for version in newest
        for column in version.columns
        if (oid := TEXT_OID if column.type_oid == VARCHAR_OID else column.type_oid) < FIRST_USER_OID
    )


def _mismatch(copy: CopyRecord, versions: Sequence[tuple[Lsn, TableSchema]]) -> str | None:
    """
    Why the changes after a copy cannot be placed among its rows; `None`: they can.

    The stream compares each version with the one before it, and does not know a copy that lands
    only after changes which follow it. So the copy is compared with the versions that came after
    it. When it has another key than the version before it, the stream may have continued with that
    one: the next copy settles it. An uncertain version has requested a copy itself.
    """
    certain = [(at, v) for at, v in versions if min(v.attnums.values(), default=1) > 0]
    before = [version for at, version in certain if at < copy.consistent_point][-1:]
    after = [version for at, version in certain if at >= copy.consistent_point]
    if len({version.key_attnums for version in (*before, *after)}) > 1:
        return OTHER_KEY
    # Either the copy's version is among the later ones, or it is the one before.
    if any(retyped(earlier, later) for earlier, later in pairwise(after)):
        return OTHER_TEXT
    return None


def reads_otherwise(copy: CopyRecord, table: PublishedTable) -> str | None:
    """
    Why the same bytes may mean other values by now; `None`: they mean the same.

    New labels and columns change no text. For a column added since, the log may have the text from
    before its type was changed.
    """
    if _has_other_key(copy, table):
        return OTHER_KEY
    now, then = table.versions, copy.versions.types
    is_other = any(
        now.types.get(what, version) != version
        for what, version in then.items()
        if what not in {PRIMARY_KEY, PRIMARY_KEY_FILE}
    )
    if is_other or any(column not in then for column in now.late_columns):
        return READS_OTHERWISE
    return None


def _has_other_key(copy: CopyRecord, table: PublishedTable) -> bool:
    """
    Whether the primary key was dropped and made since, maybe of the same columns.

    Under replica identity FULL the catalog says the key, and rows that came while there was none
    would be taken for rows of this one. ALTER TYPE makes the constraint again, and keeps its file
    unless the table is rewritten; a partitioned table's has none.
    """
    then, now = copy.versions.types, table.versions.types
    if PRIMARY_KEY not in then or PRIMARY_KEY not in now or then[PRIMARY_KEY] == now[PRIMARY_KEY]:
        return False
    file = now[PRIMARY_KEY_FILE]
    return file == 0 or file != then.get(PRIMARY_KEY_FILE)


def _shows_more(copy: CopyRecord, table: PublishedTable) -> bool:
    """
    Whether something is published whose past the log never saw.

    Not so for a column added since the copy under the same entry of the publication: the stream
    carried it from its first value on, and the catalog says what older rows have. An entry with a
    column list never grows by itself, so a column that such an entry hid comes with another one.
    """
    return (
        copy.versions.listing != table.versions.listing
        or copy.row_filter != table.row_filter
        or any(attnum <= copy.newest_attnum for attnum in {*table.attnums} - {*copy.attnums})
    )
