"""
What the source committed, as an independent second slot saw it, and what the log holds.

Shares no code with the way of a change into the log: protocol 1 without streaming, through SQL,
decoded by the slow reference; the log is read from its Delta entries and Parquet files as they lie.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from tests.support.reference import pgoutput as reference
from tests.support.reference.change import Change, Position

STREAMED: Final = frozenset({Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE, Op.MESSAGE})
"""What the oracle's slot can see: markers and copied rows are ours."""

SHOWN: Final = 12
"""Differences that are printed; the first ones tell."""


# --- the source -------------------------------------------------------------------------------


class Oracle:
    """
    A second slot of its own publication; create it before the pipeline is set up.

    The tables must exist with their keys: those are read from the catalog once.
    """

    def __init__(self, dsn: str, name: str = "oracle", *, messages: bool = False) -> None:
        self._dsn, self._name, self._with_messages = dsn, name, messages
        self._schemas: dict[int, list[tuple[int, TableSchema]]] = {}
        self._messages: list[bytes] = []
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                f"create publication {name} for all tables with (publish_via_partition_root)"  # type: ignore[arg-type]
            )
            # Slots belong to the cluster, and tests share one.
            self.slot = f"{name}_{connection.info.backend_pid}"
            connection.execute(
                "select pg_create_logical_replication_slot(%s, 'pgoutput')", [self.slot]
            )
            self._keys = _keys(connection)

    def changes(self, *, epoch: int = 1) -> list[Change]:
        """Every change committed since the slot was made."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            rows = connection.cursor(binary=True).execute(
                "select data from pg_logical_slot_get_binary_changes(%s, null, null,"
                " 'proto_version', '1', 'publication_names', %s, 'messages', %s)",
                [self.slot, self._name, str(self._with_messages).lower()],
            )
            for (data,) in rows:
                if data[:1] == b"R":
                    self._described(len(self._messages), data)
                if data[:1] != b"A":  # 18 says so of a large transaction that it never streamed
                    self._messages.append(data)
            connection.execute("checkpoint")  # else the slot sends them again after a crash
        return _plain(reference.changes(self._messages, self._schemas, epoch=epoch))

    def drop(self) -> None:
        """Forget the slot and the publication."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("select pg_drop_replication_slot(%s)", [self.slot])
            connection.execute(f"drop publication {self._name}")  # type: ignore[arg-type]

    def _described(self, index: int, data: bytes) -> None:
        schema = _schema(data, self._keys)
        self._schemas.setdefault(schema.relation_id, []).append((index, schema))


def _plain(changes: Iterable[Change]) -> list[Change]:
    """Without schema ids: the oracle does not know attnums."""
    return [replace(change, schema_id=None) for change in changes]


def _keys(connection: psycopg.Connection[tuple[Any, ...]]) -> Mapping[int, tuple[str, ...]]:
    """The columns that a relation's old image is guaranteed to carry, in the index's order."""
    rows = connection.execute(
        """
        select c.oid, array_agg(a.attname::text order by k.place)
        from pg_class c
        join pg_index i on i.indrelid = c.oid and case c.relreplident
            when 'i' then i.indisreplident
            when 'n' then false
            else i.indisprimary and i.indimmediate end
        cross join unnest(i.indkey) with ordinality as k (attnum, place)
        join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
        where k.place <= i.indnkeyatts
        group by c.oid
        """
    )
    return {oid: tuple(names) for oid, names in rows}


def _schema(data: bytes, keys: Mapping[int, tuple[str, ...]]) -> TableSchema:
    """A Relation message of protocol 1; attnums are its places."""
    [oid] = struct.unpack_from(">I", data, 1)
    namespace, name, rest = data[5:].split(b"\0", 2)
    identity, [count] = chr(rest[0]), struct.unpack_from(">H", rest, 1)
    at, columns = 3, list[Column]()
    for place in range(count):
        end = rest.index(b"\0", at + 1)
        type_oid, typmod = struct.unpack_from(">Ii", rest, end + 1)
        columns.append(Column(rest[at + 1 : end].decode(), place + 1, type_oid, "", typmod))
        at = end + 9
    return TableSchema(
        1,
        oid,
        namespace.decode(),
        name.decode(),
        ReplicaIdentity(identity),
        tuple(columns),
        keys.get(oid, ()),
    )


# --- the log ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a Delta log: transaction ids set, files added with data, files removed."""

    version: int
    transactions: Mapping[str, int]
    added: tuple[str, ...]
    removed: tuple[str, ...]


def folder_of(address: str) -> Path:
    """The local folder of a table's address (`file:/...`)."""
    return Path(unquote(urlparse(address).path)) if ":" in address else Path(address)


def entries(table: Path, *, after: int = -1) -> Iterator[Entry]:
    """The entries behind version `after` in order; ends before one that is cut short."""
    for path in sorted((table / "_delta_log").glob("*.json")):
        version = int(path.stem) if path.stem.isdigit() else -1
        if version <= after:
            continue
        try:
            actions = [json.loads(line) for line in path.read_text().splitlines()]
        except ValueError:
            return
        if not actions:
            return
        yield Entry(
            version,
            {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a},
            tuple(
                unquote(a["add"]["path"]) for a in actions if "add" in a and a["add"]["dataChange"]
            ),
            tuple(unquote(a["remove"]["path"]) for a in actions if "remove" in a),
        )


def watermarks(table: Path, app: str) -> list[Lsn]:
    """Every watermark the log ever had, in order."""
    return [Lsn(e.transactions[app]) for e in entries(table) if app in e.transactions]


def landed(table: Path, app: str) -> list[tuple[Entry, list[Change]]]:
    """Landing commits in order, each with its rows as they lie."""
    return [
        (entry, [change for file in entry.added for change in rows(table, file)])
        for entry in entries(table)
        if app in entry.transactions
    ]


def rows(table: Path, file: str) -> Iterator[Change]:
    """The rows of one file in their order."""
    read = pq.read_table(table / file, partitioning=None)
    at_us = read["committed_at"].cast(pa.int64()).to_pylist()
    for row, us in zip(read.to_pylist(maps_as_pydicts="strict"), at_us, strict=True):
        yield Change(
            Position(row["epoch"], Lsn(row["commit_lsn"]), row["ordinal"]),
            Lsn(row["end_lsn"]),
            Op(row["op"]),
            row["namespace"],
            row["relation"],
            row["relation_id"],
            row["schema_id"],
            key=None if row["key"] is None else tuple(row["key"]),
            old_key=None if row["old_key"] is None else tuple(row["old_key"]),
            before=row["before"],
            after=row["after"],
            payload=row["payload"],
            xid=row["xid"],
            committed_at_us=us,
        )


# --- comparison -------------------------------------------------------------------------------


def assert_log_equals(oracle: Oracle, lake_log: str, app: str) -> int:
    """
    The log holds what the oracle saw between its first watermark and its last: each change once,
    every field alike, in commit order, no transaction in two commits. The number of changes.
    """
    table = folder_of(lake_log)
    marks = watermarks(table, app)
    assert marks, f"{app}: the log has no watermark"
    assert marks == sorted(marks), f"{app}: a watermark went back: {marks}"
    commits = landed(table, app)
    assert_commits(commits, app)
    epoch = int(app.rpartition("/")[2])
    expected = [c for c in oracle.changes(epoch=epoch) if marks[0] < c.end_lsn <= marks[-1]]
    logged = [c for _, changes in commits for c in changes if c.op in STREAMED]
    report = differences(expected, logged)
    assert not report, "log and oracle differ:\n" + "\n".join(report)
    return len(expected)


def assert_commits(commits: Sequence[tuple[Entry, list[Change]]], app: str) -> None:
    """Each landing commit holds whole transactions: those from the last watermark to its own."""
    before = Lsn(0)
    for entry, changes in commits:
        mark = Lsn(entry.transactions[app])
        for change in changes:
            assert before < change.end_lsn <= mark, (
                f"version {entry.version} says {before} .. {mark} and holds {brief(change)}"
            )
        positions = [c.position for c in changes if c.op in STREAMED]
        assert positions == sorted(positions), f"version {entry.version} is out of order"
        before = mark


def differences(expected: Sequence[Change], logged: Sequence[Change]) -> list[str]:
    """What is missing, too much or different, first ones first; empty: alike."""
    times = Counter(change.position for change in logged)
    by_position = {change.position: change for change in logged}
    expected_by_position = {change.position: change for change in expected}
    assert len(expected_by_position) == len(expected), "the oracle itself counts a position twice"
    differing: list[tuple[Position, str]] = []
    for position, change in expected_by_position.items():
        if position not in by_position:
            differing.append((position, f"missing    {brief(change)}"))
            continue
        differing += [(position, line) for line in _fields(change, by_position[position])]
    differing += [(p, f"x{n}        {brief(by_position[p])}") for p, n in times.items() if n > 1]
    differing += [
        (p, f"unexpected {brief(c)}")
        for p, c in by_position.items()
        if p not in expected_by_position
    ]
    if not differing:
        return []
    differing.sort(key=lambda item: item[0])
    head = f"{len(differing):,} differences; {len(expected):,} expected, {len(logged):,} found"
    return [head, *(line for _, line in differing[:SHOWN])]


def _fields(expected: Change, logged: Change) -> Iterator[str]:
    for name in Change.__slots__:
        left, right = getattr(expected, name), getattr(logged, name)
        if name != "schema_id" and left != right and not _same_payload(name, left, right):
            yield f"{name:<10} {brief(expected)}: expected {_short(left)}, found {_short(right)}"


def _same_payload(name: str, left: Any, right: Any) -> bool:
    """JSON is compared as what it says."""
    return name == "payload" and None not in {left, right} and json.loads(left) == json.loads(right)


def brief(change: Change) -> str:
    """One line that names a change; values are cut."""
    table = f"{change.namespace}.{change.relation}" if change.relation else "-"
    return f"{change.position} {change.op} {table} key {_short(change.key)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]}...{text[-60:]}"
