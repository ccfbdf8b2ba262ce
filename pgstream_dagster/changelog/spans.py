"""
Which part of a relation's history its rows come from: after its last marker, up to a gap.

DataFrames in, conditions and values out; `spans` runs a job. Of a file that has rows of one kind,
its statistics say as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import ROW_OPS, Op

ROWS: Final = tuple(op.value for op in ROW_OPS)
_MARKERS: Final = (Op.COPY.value, Op.TRUNCATE.value, Op.GAP.value)


@dataclass(frozen=True, slots=True)
class Span:
    """
    The range of a relation's history that its rows come from, and its content.

    `start` is the last marker and `stop` the gap that closes the relation; `None`: open.
    """

    start: Place | None = None
    stop: Place | None = None
    is_copied: bool = False
    # At most: some from before `start` or after `stop` may be counted.
    schema_ids: frozenset[int] = frozenset()  # that its changes were decoded with
    has_moves: bool = False  # of rows, from one key to another
    copied_rows: int = 0
    changed_rows: int = 0
    history_rows: int = 0  # before `start` and after `stop`, too

    @property
    def is_known(self) -> bool:
        """Whether all rows are in the log: the relation was copied, and no gap has come since."""
        return self.is_copied and self.stop is None


@dataclass(frozen=True, slots=True)
class Group:
    """
    Changes of one relation, all decoded with one schema, or its markers of one place.

    `first` and `last` are bounds: the least and the greatest of either part of their places.
    """

    relation_id: int
    schema_id: int | None  # markers need none
    marker: str | None
    first: Place
    last: Place
    move: Place | None
    reads: int
    rows: int


def spans(changes: DataFrame | None, counted: Iterable[Group] = ()) -> dict[int, Span]:
    """
    The span of every relation that has changes; one Spark job, or none without `changes`.

    Shape:
        changes: as `fold` takes them, of any number of relations of one epoch; `None`: none.
        counted: more changes of that epoch.
    """
    by_relation: dict[int, list[Group]] = {}
    for group in [*counted, *([] if changes is None else _groups(changes))]:
        by_relation.setdefault(group.relation_id, []).append(group)
    return {oid: _span(groups) for oid, groups in by_relation.items()}


def _groups(changes: DataFrame) -> list[Group]:
    op, lsn, ordinal = F.col("op"), F.col("commit_lsn"), F.col("ordinal")
    marker = F.when(op.isin(list(_MARKERS)), op)
    places = [F.when(marker.isNotNull(), part) for part in (lsn, ordinal)]
    is_move = F.col("old_key").isNotNull()
    # Numbers only: Spark compiles no aggregation of structures or lists.
    groups = (
        changes.where(op.isin([*ROWS, *_MARKERS]))
        .groupBy("relation_id", "schema_id", marker.alias("marker"), *places)
        .agg(
            F.min(lsn).alias("first_lsn"),
            F.min(ordinal).alias("first_ordinal"),
            F.max(lsn).alias("last_lsn"),
            F.max(ordinal).alias("last_ordinal"),
            F.max(F.when(is_move, lsn)).alias("move_lsn"),
            F.max(F.when(is_move, ordinal)).alias("move_ordinal"),
            F.count_if(op == Op.READ.value).alias("reads"),
            F.count("*").alias("rows"),
        )
        .collect()
    )
    return [
        Group(
            group["relation_id"],
            group["schema_id"],
            group["marker"],
            first=_place(group, "first"),
            last=_place(group, "last"),
            move=None if group["move_lsn"] is None else _place(group, "move"),
            reads=group["reads"],
            rows=group["rows"],
        )
        for group in groups
    ]


def _place(group: Row, name: str) -> Place:
    return Place(Lsn(group[f"{name}_lsn"]), group[f"{name}_ordinal"])


def group_of_file(statistics: Mapping[str, Any], epoch: int, before: Lsn) -> Group | None:
    """
    The rows of a file of the log, if its statistics say that they are one group of this epoch.

    So it is with the files of a copy. `None`: they are not, or not all lie before a point, or some
    moved, or the statistics do not say it.

    Shape:
        statistics: Delta's, of a file without deletion vector.
    """
    least, greatest, nulls = (
        statistics.get(name) or {} for name in ("minValues", "maxValues", "nullCount")
    )
    value, places = _constants(least, greatest, nulls), _places(least, greatest, nulls)
    rows: int | None = statistics.get("numRecords")
    has_no_moves = nulls.get("old_key") == rows
    if rows is None or places is None or value["epoch"] != epoch or value["relation_id"] is None:
        return None
    first, last = places
    is_marker = value["op"] in _MARKERS and first == last
    is_row = value["op"] in ROWS and value["schema_id"] is not None and has_no_moves
    is_earlier = last < Place(before, 0)  # as `is_before`
    if not is_earlier or not (is_marker or is_row):
        return None
    return Group(
        value["relation_id"],
        value["schema_id"],
        marker=value["op"] if is_marker else None,
        first=first,
        last=last,
        move=None,
        reads=rows if value["op"] == Op.READ else 0,
        rows=rows,
    )


_Bounds: TypeAlias = Mapping[str, Any]


def _constants(least: _Bounds, greatest: _Bounds, nulls: Mapping[str, int]) -> dict[str, Any]:
    """The value that each of these columns has in all rows of a file; null: none, or not known."""

    def is_constant(name: str) -> bool:
        return nulls.get(name) == 0 and least.get(name) == greatest.get(name)

    names = ("epoch", "relation_id", "schema_id", "op")
    return {name: least.get(name) if is_constant(name) else None for name in names}


def _places(
    least: _Bounds, greatest: _Bounds, nulls: Mapping[str, int]
) -> tuple[Place, Place] | None:
    """Bounds of the places of a file's rows."""
    names = ("commit_lsn", "ordinal")
    if any(nulls.get(name) != 0 for name in names):
        return None
    match [at.get(name) for at in (least, greatest) for name in names]:
        case [int(first_lsn), int(first_ordinal), int(last_lsn), int(last_ordinal)]:
            return Place(Lsn(first_lsn), first_ordinal), Place(Lsn(last_lsn), last_ordinal)
        case _:
            return None


def _span(groups: Sequence[Group]) -> Span:
    """The span of one relation."""

    def places(marker: Op) -> list[Place]:
        return [group.first for group in groups if group.marker == marker.value]

    copied = max(places(Op.COPY), default=None)
    gaps = [place for place in places(Op.GAP) if copied is None or place > copied]
    stop = min(gaps, default=None)
    truncates = [place for place in places(Op.TRUNCATE) if stop is None or place < stop]
    start = max(truncates if copied is None else [*truncates, copied], default=None)
    inside = [
        group
        for group in groups
        if group.marker is None
        and (start is None or group.last > start)
        and (stop is None or group.first < stop)
    ]
    moves = [group.move for group in inside if group.move is not None]
    reads = sum(group.reads for group in inside)
    return Span(
        start,
        stop,
        copied is not None,
        frozenset(cast("int", group.schema_id) for group in inside),  # null: `fold` refuses it
        any(start is None or move > start for move in moves),
        reads,
        sum(group.rows for group in inside) - reads,
        sum(group.rows for group in groups),
    )


def between(start: Place | None, stop: Place | None) -> Column:
    """After `start` and before `stop`, each open when `None`."""
    lsn, ordinal = F.col("commit_lsn"), F.col("ordinal")
    condition = F.col("commit_lsn").isNotNull()
    if start is not None:  # `>=` alone is what files are skipped by
        at = int(start.commit_lsn)
        condition = condition & (lsn >= at) & ((lsn > at) | (ordinal > start.ordinal))
    if stop is not None:
        at = int(stop.commit_lsn)
        condition = condition & (lsn <= at) & ((lsn < at) | (ordinal < stop.ordinal))
    return condition


def is_before(epoch: int, lsn: Lsn) -> Column:
    """
    Whether a change lies before a watermark or a snapshot's consistent point.

    Both include the transactions whose commit record begins before `lsn`. A copy or gap exactly
    there (negative ordinals) is the state at that point, so it is included; a transaction that
    commits exactly there is not.
    """
    is_earlier = (F.col("commit_lsn") < int(lsn)) | (
        (F.col("commit_lsn") == int(lsn)) & (F.col("ordinal") < 0)
    )
    # `pruned` follows from the rest; it is written out because only a plain comparison is checked
    # against the statistics of files.
    pruned = (F.col("epoch") < epoch) | (F.col("commit_lsn") <= int(lsn))
    return pruned & ((F.col("epoch") < epoch) | ((F.col("epoch") == epoch) & is_earlier))
