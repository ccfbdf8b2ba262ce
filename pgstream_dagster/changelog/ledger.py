"""
The ledger: what happened to a pipeline, one row per fact, append only.

It answers which source the pipeline belongs to, and what each table looked like when it was last
copied. Facts are JSON, positions in it are text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import LEDGER, Lake
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.errors import LakeTaken, TableMissing
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.versions import Versions

IDENTITY: Final = "identity"
TIMELINE: Final = "timeline"
COPY: Final = "copy"
FILES: Final = "files"
TYPES: Final = "types"


@dataclass(frozen=True, slots=True)
class PipelineIdentity:
    """The source that a pipeline was set up with."""

    pipeline: str
    system_id: str
    database: str
    slot: str
    publication: str
    epoch: int
    timeline: int


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What a table was when it was copied: when that differs, it must be copied again."""

    consistent_point: Lsn
    members: Mapping[int, int]  # leaf's oid -> relfilenode
    attnums: tuple[int, ...]  # of the columns published
    newest_attnum: int  # of all columns
    row_filter: str | None
    table: str
    versions: Versions  # as of the consistent point


class Ledger:
    """The facts of one pipeline. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway) -> None:
        self._table = SmallTable(lake.ledger, LEDGER.columns, gateway)
        self._root = lake.root

    def record(self, kind: str, epoch: int, facts: Mapping[str, Any]) -> None:
        """Add a fact; durable when this returns."""
        row = {
            "recorded_at": datetime.now(UTC),
            "kind": kind,
            "epoch": epoch,
            "facts": json.dumps(dict(facts), sort_keys=True),
        }
        self._table.add(pa.Table.from_pylist([row], LEDGER.columns))

    def record_identity(self, identity: PipelineIdentity) -> None:
        """Add that the pipeline reads this source."""
        self.record(IDENTITY, identity.epoch, asdict(identity))

    def record_timeline(self, epoch: int, timeline: int) -> None:
        """Add that the source of the epoch was promoted to a later timeline."""
        self.record(TIMELINE, epoch, {"timeline": timeline})

    def record_copy(self, epoch: int, relation_id: int, copy: CopyRecord) -> None:
        """Add that a table's copy is in the log."""
        facts = asdict(copy) | {
            "relation_id": relation_id,
            "consistent_point": str(copy.consistent_point),
            "members": _said(copy.members),
            "versions": asdict(copy.versions) | {"edges": _said(copy.versions.edges)},
        }
        self.record(COPY, epoch, facts)

    def record_files(
        self, epoch: int, relation_id: int, members: Mapping[int, int], since: Lsn
    ) -> None:
        """Add that a table is in other files by what the log has before `since`: no rewrite."""
        facts = {"relation_id": relation_id, "members": _said(members), "since": str(since)}
        self.record(FILES, epoch, facts)

    def record_types(
        self, epoch: int, relation_id: int, types: Mapping[str, int], since: Lsn
    ) -> None:
        """Add what the text of a table's values depends on since its copy: a new column's type."""
        facts = {"relation_id": relation_id, "types": dict(types), "since": str(since)}
        self.record(TYPES, epoch, facts)

    def identity(self, pipeline: str) -> PipelineIdentity | None:
        """
        The newest identity, on its last timeline; `None` when nothing was set up.

        Raises:
            LakeTaken: the lake is another pipeline's; two in one log would be one.
        """
        try:
            found = self.facts(IDENTITY)
        except TableMissing:
            return None
        if not found:
            return None
        known = PipelineIdentity(**found[-1][1])
        if known.pipeline != pipeline:
            raise LakeTaken(self._root, known.pipeline, pipeline)
        promoted = [f["timeline"] for of, f in self.facts(TIMELINE) if of == known.epoch]
        return replace(known, timeline=max([known.timeline, *promoted]))  # they only grow

    def copies(self, epoch: int | None = None) -> dict[int, CopyRecord]:
        """
        Relation oid -> its newest copy in the epoch; without `epoch`, in the newest one.

        With the files that the table is in by what the log has since the copy, and with what came
        to its types since.
        """
        found = self.facts(COPY)
        if epoch is None:
            epoch = max((of for of, _ in found), default=0)
        copies: dict[int, CopyRecord] = {}
        for of, facts in found:
            record = _copy(facts)
            known = copies.get(facts["relation_id"])
            if of == epoch and (known is None or record.consistent_point >= known.consistent_point):
                copies[facts["relation_id"]] = record
        for of, facts in sorted(self.facts(FILES), key=lambda fact: _since(fact[1])):
            known = copies.get(facts["relation_id"])
            if of == epoch and known is not None and known.consistent_point < _since(facts):
                copies[facts["relation_id"]] = replace(known, members=_members(facts))
        for of, facts in self.facts(TYPES):
            known = copies.get(facts["relation_id"])
            if of == epoch and known is not None and known.consistent_point < _since(facts):
                types = {**facts["types"], **known.versions.types}  # as first seen
                seen = replace(known.versions, types=types)
                copies[facts["relation_id"]] = replace(known, versions=seen)
        return copies

    def facts(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Epoch and facts of every row of a kind, by epoch and as they were recorded."""
        rows = [row for row in self._table.rows().to_pylist() if row["kind"] == kind]
        rows.sort(key=lambda row: row["epoch"])
        return [(row["epoch"], json.loads(row["facts"])) for row in rows]

    def merge(self) -> None:
        """Fewer files, the same facts."""
        self._table.merge()

    def close(self) -> None:
        """Wait for what follows its commits."""
        self._table.close()


def _said(members: Mapping[int, int]) -> dict[str, int]:
    return {str(leaf): node for leaf, node in members.items()}


def _members(facts: Mapping[str, Any]) -> dict[int, int]:
    return {int(leaf): int(node) for leaf, node in facts["members"].items()}


def _since(facts: Mapping[str, Any]) -> Lsn:
    return Lsn.parse(facts["since"])


def _copy(facts: Mapping[str, Any]) -> CopyRecord:
    return CopyRecord(
        consistent_point=Lsn.parse(facts["consistent_point"]),
        members=_members(facts),
        attnums=tuple(facts["attnums"]),
        newest_attnum=facts["newest_attnum"],
        row_filter=facts["row_filter"],
        table=facts["table"],
        versions=_versions(facts.get("versions")),
    )


def _versions(facts: Mapping[str, Any] | None) -> Versions:
    """Of a copy that was recorded without, none: the table is copied again."""
    if facts is None:
        return Versions()
    edges = {int(leaf): int(version) for leaf, version in facts["edges"].items()}
    return Versions(tuple(facts["listing"]), edges, facts["types"])
