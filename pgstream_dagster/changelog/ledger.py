"""
The ledger: the facts of a pipeline's life, one row per fact, append only.

It records which source the pipeline belongs to, and what each table looked like when it was last
copied. Facts are JSON; positions in it are text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import LEDGER
from pgstream_dagster.delta.small_table import SmallTable
from pgstream_dagster.errors import LakeTaken, NotSetUp, TableMissing
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.versions import Versions

IDENTITY: Final = "identity"
TIMELINE: Final = "timeline"
COPY: Final = "copy"
FILES: Final = "files"
TYPES: Final = "types"
LOST: Final = "lost"
TORN_DOWN: Final = "teardown"
"""Slot and publication were dropped on purpose; `identities` is how often the pipeline had been set
up by then, so that no clock has to order the two."""

REPAIR_BEGUN: Final = "resnapshot"
"""A repair has begun; the slot it makes is ours."""

REPAIR_ENDED: Final = "resnapshot ended"


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
    """What a table looked like when it was copied; if that changes, it must be copied again."""

    consistent_point: Lsn
    members: Mapping[int, int]  # leaf's oid -> relfilenode
    attnums: tuple[int, ...]  # of the columns published
    newest_attnum: int  # of all columns
    row_filter: str | None
    table: str
    versions: Versions  # as of the consistent point


@dataclass(slots=True)
class _Parsed:
    """The facts of the ledger's rows, and what was read from them."""

    rows: pa.Table
    by_kind: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    copies: dict[int, dict[int, CopyRecord]] = field(default_factory=dict)  # by epoch


class Ledger(SmallTable):
    """The facts of one pipeline. Threads may share it."""

    def __init__(self, lake: Lake, gateway: JavaGateway) -> None:
        super().__init__(lake.ledger, LEDGER.columns, gateway)
        self._root = lake.root
        self._parsed: _Parsed | None = None

    def record(self, kind: str, epoch: int, facts: Mapping[str, Any]) -> None:
        """Add a fact; durable when this returns."""
        row = {
            "recorded_at": datetime.now(UTC),
            "kind": kind,
            "epoch": epoch,
            "facts": json.dumps(dict(facts), sort_keys=True),
        }
        self.add_rows(pa.Table.from_pylist([row], LEDGER.columns))

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
            "members": _text_keys(copy.members),
            "versions": asdict(copy.versions) | {"edges": _text_keys(copy.versions.edges)},
        }
        self.record(COPY, epoch, facts)

    def record_files(
        self, epoch: int, relation_id: int, members: Mapping[int, int], since: Lsn
    ) -> None:
        """Add that a table has other files, as the log before `since` explains: no rewrite."""
        facts = {"relation_id": relation_id, "members": _text_keys(members), "since": str(since)}
        self.record(FILES, epoch, facts)

    def record_types(
        self, epoch: int, relation_id: int, types: Mapping[str, int], since: Lsn
    ) -> None:
        """Add types that the text of a table's values depends on since its copy."""
        facts = {"relation_id": relation_id, "types": dict(types), "since": str(since)}
        self.record(TYPES, epoch, facts)

    def record_lost(self, epoch: int, after: Lsn, until: Lsn) -> None:
        """Add that the log has no change between two positions, though the source had some."""
        self.record(LOST, epoch, {"after": str(after), "until": str(until)})

    def lost(self, epoch: int) -> list[tuple[Lsn, Lsn]]:
        """The parts of an epoch's history that the log lacks: after one position, until another."""
        facts = self._of_epoch(LOST, epoch)
        return [(Lsn.parse(fact["after"]), Lsn.parse(fact["until"])) for fact in facts]

    def identity(self, pipeline: str) -> PipelineIdentity | None:
        """
        The newest identity, on its last timeline; `None` when nothing was set up.

        Raises:
            LakeTaken: the lake belongs to another pipeline, whose changes would mix with these.
        """
        try:
            identities = self.facts(IDENTITY)
        except TableMissing:
            return None
        if not identities:
            return None
        newest = PipelineIdentity(**identities[-1][1])
        if newest.pipeline != pipeline:
            raise LakeTaken(self._root, newest.pipeline, pipeline)
        promoted = [facts["timeline"] for facts in self._of_epoch(TIMELINE, newest.epoch)]
        return replace(newest, timeline=max([newest.timeline, *promoted]))  # they only grow

    @property
    def is_torn_down(self) -> bool:
        """Whether the newest slot of the pipeline was dropped on purpose."""
        identities = len(self.facts(IDENTITY))
        return any(facts["identities"] == identities for _, facts in self.facts(TORN_DOWN))

    def require_not_torn_down(self, pipeline: str) -> None:
        """Raises `NotSetUp` if it is: only `setup` helps then."""
        if self.is_torn_down:
            raise NotSetUp(pipeline, self._root)

    @property
    def is_in_repair(self) -> bool:
        """Whether a `resnapshot` began and did not end; it may run now."""
        return len(self.facts(REPAIR_BEGUN)) > len(self.facts(REPAIR_ENDED))

    def copies(self, epoch: int | None = None) -> dict[int, CopyRecord]:
        """
        Relation oid -> its newest copy in the epoch; without `epoch`, in the newest one.

        With the table's present files, as the log since the copy explains them, and with the types
        that were added since. Read once for as long as no fact is added: a stream asks for each
        relation that it meets.
        """
        if epoch is None:
            epoch = max((recorded for recorded, _ in self.facts(COPY)), default=0)
        parsed = self._facts()
        if epoch not in parsed.copies:
            parsed.copies[epoch] = self._copies(epoch)
        return dict(parsed.copies[epoch])

    def consistent_points(self, epoch: int) -> list[tuple[Lsn, int]]:
        """The consistent point and the relation of every copy of an epoch, in their order."""
        facts = self._of_epoch(COPY, epoch)
        return sorted((Lsn.parse(f["consistent_point"]), f["relation_id"]) for f in facts)

    def _copies(self, epoch: int) -> dict[int, CopyRecord]:
        recorded = [(facts["relation_id"], _copy(facts)) for facts in self._of_epoch(COPY, epoch)]
        copies = dict(sorted(recorded, key=lambda entry: entry[1].consistent_point))
        for facts in sorted(self._of_epoch(FILES, epoch), key=_since):
            if (copy := _copied_before(facts, copies)) is not None:
                copies[facts["relation_id"]] = replace(copy, members=_members(facts))
        for facts in self._of_epoch(TYPES, epoch):
            if (copy := _copied_before(facts, copies)) is not None:
                types = {**facts["types"], **copy.versions.types}  # as first seen
                versions = replace(copy.versions, types=types)
                copies[facts["relation_id"]] = replace(copy, versions=versions)
        return copies

    def facts(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Epoch and facts of every row of a kind, by epoch and as they were recorded."""
        return self._facts().by_kind.get(kind, [])

    def _facts(self) -> _Parsed:
        rows = self.rows()
        parsed = self._parsed
        if parsed is None or parsed.rows is not rows:
            parsed = _Parsed(rows)
            for row in sorted(rows.to_pylist(), key=lambda row: row["epoch"]):
                facts = row["epoch"], json.loads(row["facts"])
                parsed.by_kind.setdefault(row["kind"], []).append(facts)
            self._parsed = parsed
        return parsed

    def _of_epoch(self, kind: str, epoch: int) -> list[dict[str, Any]]:
        return [facts for recorded, facts in self.facts(kind) if recorded == epoch]


def _text_keys(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(key): number for key, number in numbers.items()}


def _members(facts: Mapping[str, Any]) -> dict[int, int]:
    return {int(leaf): int(node) for leaf, node in facts["members"].items()}


def _since(facts: Mapping[str, Any]) -> Lsn:
    return Lsn.parse(facts["since"])


def _copied_before(facts: Mapping[str, Any], copies: Mapping[int, CopyRecord]) -> CopyRecord | None:
    """The copy that `facts` continue; `None` when there is none, or it is newer than they are."""
    copy = copies.get(facts["relation_id"])
    return copy if copy is not None and copy.consistent_point < _since(facts) else None


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
    """No versions for a copy recorded without them: the table is copied again."""
    if facts is None:
        return Versions()
    edges = {int(leaf): int(version) for leaf, version in facts["edges"].items()}
    return Versions(tuple(facts["listing"]), edges, facts["types"])
