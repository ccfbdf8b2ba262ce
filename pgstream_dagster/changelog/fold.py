"""
The fold: from the changes of a relation to its rows.

Tables, re-index, compaction and sinks all share this one definition; a plain implementation in
`tests/support/reference/fold.py` is its oracle. DataFrames in, DataFrames out; it reads no table by
itself and writes none. Which changes count:

- those after the last `copy` or `truncate`, by `Position` and never by the order of rows;
- a `gap` closes the relation until its next `copy`: changes between the two are left out, also a
  `truncate`. A gap without a later copy ends the fold there.

A relation with a key, per key: `delete` ends the row, `insert` and `read` start it, and per column,
identified by its attnum, the last change that carried it wins. It follows:

- An update that carries every column of its schema is a full row, so it starts a row where there is
  none. An update that leaves columns out needs the row it changes; where there is none (which never
  happens in a sound log) it is left out, because half a row is worse than none.
- A *complete* update with `old_key` is therefore a delete of the old key and an insert of the new
  one, and keys need no order among each other. Only an *incomplete* one (a moved row with an
  untouched large value) carries columns from one key to the other. Such rows are followed through
  their keys as one `lifetime`; that pass is sequential, reads only positions, and only those of
  keys that such an update touched.
- Folding the same changes twice gives the same rows; but the rows of a copy are taken as they are,
  because each is in the log once. Only those rows of a large copy are shuffled that a change has
  touched since.

A relation without a key is a multiset of full rows: how often a row was added minus how often it
was removed. An update or delete without a full `before` image identifies no row to remove and is
left out. This fold counts, so it must see every change exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pgstream_dagster.changelog.spans import ROWS, Span, between, is_before, spans
from pgstream_dagster.errors import UnknownSchema
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema, missing_values

ROWS_DDL: Final = (
    "key ARRAY<STRING>, row MAP<STRING,STRING>,"
    " commit_lsn BIGINT, ordinal BIGINT, schema_id BIGINT, committed_at TIMESTAMP"
)
"""The result of a fold: a row of the table, and position, schema and time of its last change."""

_LAST: Final = ("commit_lsn", "ordinal", "schema_id", "committed_at")

# What a change means at one key: a row starts, changes in part or ends; for a move whose image is
# incomplete: the row leaves this key, or arrives at it.
_BASE, _PART, _END, _LEAVE, _ARRIVE = "base", "part", "end", "leave", "arrive"


COPIED_ROWS: Final = 50_000
"""All rows of a smaller copy are shuffled: that is faster than planning two ways."""

TOUCHED_ROWS: Final = 100_000
"""The keys of more changes, some 100 bytes each, are too large to hold in every task."""


def fold(
    changes: DataFrame,
    schemas: Sequence[TableSchema],
    *,
    upto: tuple[int, Lsn] | None = None,
    span: Span | None = None,
) -> DataFrame:
    """
    The rows of one relation after its `changes`, under the names of its newest schema.

    Runs small Spark jobs at once (for moves, and for the span unless given); the rows are lazy.

    Shape:
        changes: one row per change of one (epoch, relation_id), columns of `layout.CHANGES`, in
            any order.
        schemas: every version of the relation, oldest first; a version may come again.
        upto: (epoch, watermark or consistent point): only changes before it count.
        span: the result of `spans` for these changes (those before `upto`).
        result: `ROWS_DDL`, one row per row of the table; `key` is null when it has none. A column
            younger than a row has the value that Postgres shows for it (`Column.missing`).

    Raises:
        UnknownSchema: a change that counts was decoded with a schema that `schemas` lacks.
    """
    if upto is not None:
        changes = changes.where(is_before(*upto))
    span = span or next(iter(spans(changes).values()), Span())
    live = changes.where(between(span.start, span.stop) & F.col("op").isin(list(ROWS)))
    used = _used(span, schemas)
    versions = _versions(changes.sparkSession, [schemas])
    has_key = {bool(schema.key) for schema in used or schemas[-1:]}
    parts: list[DataFrame] = []
    if True in has_key:
        is_newest = span.schema_ids <= {schemas[-1].schema_id}
        keyed = live.where(F.col("key").isNotNull())
        parts.append(_keyed(keyed, versions, span, is_newest=is_newest))
    if False in has_key:
        parts.append(_keyless(live.where(F.col("key").isNull()).join(versions, "schema_id")))
    return reduce(DataFrame.unionByName, parts)


def fold_together(
    changes: DataFrame,
    histories: Sequence[Sequence[TableSchema]],
    *,
    has_moves: bool,
    unsent: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> DataFrame:
    """
    What the `changes` of several relations leave at each key they touch, by one plan for all.

    Shape:
        changes: row changes of these relations, all of which count, each at a place of its own.
        histories: the versions of each relation, as `fold` takes them.
        has_moves: whether any change has an `old_key`.
        unsent: relation -> columns that a row has though no change carries them.
        result: `relation_id BIGINT` and `ROWS_DDL`; `row` is null where the row has ended.
    """
    versions = _versions(changes.sparkSession, histories, unsent)
    marked = [
        F.when(F.col(key).isNotNull(), F.concat(F.array(relation), F.col(key))).alias(key)
        for relation in [F.col("relation_id").cast("string")]
        for key in ("key", "old_key")
    ]
    others = [name for name in changes.columns if name not in {"key", "old_key"}]
    named = changes.select(*others, *marked).join(versions, "schema_id")
    folded = rows_by_key(named, has_moves=has_moves, with_ended=True)
    relation_id = F.get("key", F.lit(0)).cast("bigint").alias("relation_id")
    key = F.slice("key", F.lit(2), F.size("key") - 1).alias("key")
    return folded.select(relation_id, key, "row", *_LAST)


def copied_together(reads: DataFrame, histories: Sequence[Sequence[TableSchema]]) -> DataFrame:
    """
    The rows of several relations that no change has touched since their copies, as they are.

    Shape:
        reads: their copied rows.
        histories: as `fold_together` takes them.
        result: `relation_id` and `ROWS_DDL`.
    """
    named = reads.join(_versions(reads.sparkSession, histories), "schema_id")
    return named.select("relation_id", "key", _whole(F.col("after")).alias("row"), *_LAST)


def incomplete(
    changes: DataFrame,
    histories: Sequence[Sequence[TableSchema]],
    unsent: Mapping[int, Sequence[str]],
) -> DataFrame:
    """
    The updates that leave out columns, so that their row has to be known.

    Shape:
        unsent: as `fold_together` takes them.
    """
    versions = _versions(changes.sparkSession, histories, unsent).select("schema_id", "size")
    updates = changes.where(F.col("op") == Op.UPDATE.value).join(versions, "schema_id")
    return updates.where(~_is_whole(F.col("after"))).drop("size")


def _used(span: Span, schemas: Sequence[TableSchema]) -> list[TableSchema]:
    """The schema versions that the changes were decoded with."""
    by_id = {schema.schema_id: schema for schema in schemas}
    for unknown in span.schema_ids - by_id.keys():
        raise UnknownSchema(unknown, schemas[-1].full_name)
    return [by_id[schema_id] for schema_id in span.schema_ids]


# --- images of any version under the newest one's names ----------------------------------------

_VERSIONS: Final = pa.schema(
    [
        ("schema_id", pa.int64()),
        ("size", pa.int32()),
        ("names", pa.map_(pa.string(), pa.string())),
        ("younger", pa.map_(pa.string(), pa.string())),
    ]
)


def _versions(
    spark: SparkSession,
    histories: Sequence[Sequence[TableSchema]],
    unsent: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> DataFrame:
    """How to read an image of each version; a table, so that all relations share one plan."""
    rows = [
        row | {"size": row["size"] + len(unsent.get(schemas[-1].relation_id, ()))}
        for schemas in histories
        for row in _version_rows(schemas)
    ]
    return F.broadcast(spark.createDataFrame(pa.Table.from_pylist(rows, _VERSIONS)))


def _version_rows(schemas: Sequence[TableSchema]) -> list[dict[str, Any]]:
    """
    The versions of one relation, and how each corresponds to the newest.

    Shape:
        size: the number of columns, those that no change carries included.
        names: column name to the newest version's name, without columns dropped since; null when
            nothing was renamed or dropped.
        younger: the newest version's columns that this one lacks, with the value that Postgres
            shows for them in older rows; null when there are none.
    """
    newest = {column.attnum: column.name for column in schemas[-1].columns}
    missing = missing_values(schemas)
    rows: list[dict[str, Any]] = []
    for schema in {schema.schema_id: schema for schema in schemas}.values():
        names = {c.name: newest[c.attnum] for c in schema.columns if c.attnum in newest}
        is_same = all(names.get(column.name) == column.name for column in schema.columns)
        had = schema.attnums.values()
        younger = [(name, missing[attnum]) for attnum, name in newest.items() if attnum not in had]
        rows.append(
            {
                "schema_id": schema.schema_id,
                "size": len(schema.columns),
                "names": None if is_same else list(names.items()),
                "younger": younger or None,
            }
        )
    return rows


def _is_whole(image: Column) -> Column:
    """Whether the image carries every column of its schema."""
    return image.isNotNull() & (F.size(image) == F.col("size"))


def renamed(image: Column, names: Column) -> Column:
    """The image with other names for its columns, without those that `names` lacks."""
    kept = F.map_filter(image, lambda name, _: F.map_contains_key(names, name))
    return F.transform_keys(kept, lambda name, _: F.element_at(names, name))


def entries(image: Column | str) -> Column:
    """
    The entries of a map by name: maps can be neither compared nor grouped by, but these can.

    Spark compiles `sort_array`; `array_sort`, which takes a function, is interpreted.
    """
    return F.sort_array(F.map_entries(image))


def _renamed(image: Column) -> Column:
    """The image with columns renamed by attnum, without those dropped since."""
    names = F.col("names")
    return F.when(names.isNull(), image).otherwise(renamed(image, names))


def _whole(image: Column) -> Column:
    """As `_renamed`, for an image that starts a row: adds the values of younger columns."""
    younger, older = F.col("younger"), _renamed(image)
    return F.when(younger.isNull(), older).otherwise(F.map_concat(younger, older))


# --- relations with a key -----------------------------------------------------------------------


def _keyed(changes: DataFrame, versions: DataFrame, span: Span, *, is_newest: bool) -> DataFrame:
    """`is_newest`: every image is of the newest version."""
    named = changes.join(versions, "schema_id")
    images = changes if is_newest else named
    if not span.changed_rows:
        return _copied(images, is_newest)
    if span.copied_rows < COPIED_ROWS or span.changed_rows > TOUCHED_ROWS:
        return rows_by_key(named, has_moves=span.has_moves)
    is_copied = F.col("op") == Op.READ.value
    changed, reads = named.where(~is_copied), named.where(is_copied)
    keys = changed.select("key")
    if span.has_moves:
        keys = keys.union(changed.select("old_key").where(F.col("old_key").isNotNull()))
    touched = F.broadcast(keys.distinct())
    again = changed.unionByName(reads.join(touched, "key", "left_semi"))
    untouched = images.where(is_copied).join(touched, "key", "left_anti")
    return _copied(untouched, is_newest).unionByName(rows_by_key(again, has_moves=span.has_moves))


def _copied(reads: DataFrame, is_newest: bool) -> DataFrame:
    """The rows of a copy that no change has touched."""
    row = F.col("after") if is_newest else _whole(F.col("after"))
    return reads.select("key", row.alias("row"), *_LAST)


def rows_by_key(changes: DataFrame, *, has_moves: bool, with_ended: bool = False) -> DataFrame:
    """
    The row that the changes of each key result in, where there is one.

    With `with_ended`: at each key; `row` is null where there is none.

    Shape:
        changes: row changes, all of which count, with the columns of `_VERSIONS`.
        result: `ROWS_DDL`.
    """
    events = _events(changes)
    if not has_moves:
        return _rows(events.withColumn("lifetime", F.col("key")), with_ended=with_ended)
    events = events.unionByName(_departures(changes.where(F.col("old_key").isNotNull())))
    by_key = events.withColumn("lifetime", F.col("key"))
    # Kept where they were computed (and freed with the result); otherwise the plan would read the
    # log again for every use below.
    moving = events.where(F.col("kind").isin(_LEAVE, _ARRIVE)).select("key").distinct()
    moving = moving.localCheckpoint()
    if moving.isEmpty():
        return _rows(by_key, with_ended=with_ended)
    touched = events.join(moving, "key", "left_semi").localCheckpoint()
    others = _rows(by_key.join(moving, "key", "left_anti"), with_ended=with_ended)
    moved = _rows(_lifetimes(touched))
    if with_ended:
        ended = moving.join(moved.select("key"), "key", "left_anti")
        moved = moved.unionByName(ended, allowMissingColumns=True)
    return others.unionByName(moved)


def _events(changes: DataFrame) -> DataFrame:
    """What each change means at its key."""
    op, after = F.col("op"), F.col("after")
    kind = (
        F.when(op == Op.DELETE.value, _END)
        .when((op != Op.UPDATE.value) | _is_whole(after), _BASE)
        .when(F.col("old_key").isNotNull(), _ARRIVE)
        .otherwise(_PART)
    )
    image = F.when(kind == _BASE, _whole(after)).when(kind != _END, _renamed(after))
    return changes.select("key", *_LAST, kind.alias("kind"), image.alias("image"))


def _departures(moves: DataFrame) -> DataFrame:
    """What each move means at the key that it leaves."""
    return moves.select(
        F.col("old_key").alias("key"),
        *_LAST,
        F.when(_is_whole(F.col("after")), _END).otherwise(_LEAVE).alias("kind"),
        F.lit(None).cast("map<string,string>").alias("image"),
    )


def _rows(events: DataFrame, *, with_ended: bool = False) -> DataFrame:
    """
    Merge the events of each `lifetime` into its row; none, or null, where that has ended.

    Of all parts that carry the same columns only the last can win, and of all starts and ends only
    the last. So one event per set of columns is gathered per lifetime, however often a row changed.
    One shuffle: rows hashed by lifetime are together for the second grouping too.
    """
    carried = F.when(F.col("kind") == _PART, F.sort_array(F.map_keys("image")))
    newest_first = Window.partitionBy("lifetime", "carried").orderBy(
        F.desc("commit_lsn"), F.desc("ordinal")
    )
    last = (
        events.withColumn("carried", carried)
        .repartition("lifetime")
        .withColumn("age", F.row_number().over(newest_first))
        .where(F.col("age") == 1)
    )
    event = F.struct(*_LAST[:2], "kind", "key", *_LAST[2:], "image")
    gathered = last.groupBy("lifetime").agg(F.collect_list(event).alias("events"))
    base = F.get(F.filter("events", lambda event: event["kind"] != _PART), 0)
    based = gathered.select("events", base.alias("base"))
    begun = based if with_ended else based.where(F.col("base.kind") == _BASE)
    return begun.select("base", _later_parts().alias("parts")).select(*_merged())


def _later_parts() -> Column:
    """The parts after the base, in order of position; none for most rows."""

    def is_later(event: Column) -> Column:
        return (event["kind"] == _PART) & _after(event, F.col("base"))

    def order(left: Column, right: Column) -> Column:
        return F.when(_after(left, right), 1).when(_after(right, left), -1).otherwise(0)

    parts = F.array_sort(F.filter("events", is_later), order)
    return F.when(F.size("events") > 1, parts)


def _after(left: Column, right: Column) -> Column:
    return (left["commit_lsn"] > right["commit_lsn"]) | (
        (left["commit_lsn"] == right["commit_lsn"]) & (left["ordinal"] > right["ordinal"])
    )


def _merged() -> list[Column]:
    """The parts merged over their base; key, position and schema are those of the last change."""

    def laid_over(row: Column, part: Column) -> Column:
        kept = F.map_filter(row, lambda name, _: ~F.map_contains_key(part["image"], name))
        return F.map_concat(kept, part["image"])

    base, parts = F.col("base"), F.col("parts")
    last = F.coalesce(F.try_element_at(parts, F.lit(-1)), base)
    row = F.when(F.size(parts) > 0, F.aggregate(parts, base["image"], laid_over))
    return [
        last["key"].alias("key"),
        row.otherwise(base["image"]).alias("row"),
        *(last[name].alias(name) for name in _LAST),
    ]


def _lifetimes(events: DataFrame) -> DataFrame:
    """The events of each row that exists at the end, followed through incomplete moves."""
    lifetimes = _in_lifetimes(events)
    is_there = F.max(F.col("since") == F.col("final")).over(Window.partitionBy("lifetime"))
    kind = F.when(F.col("kind") == _ARRIVE, _PART).otherwise(F.col("kind"))
    return (
        lifetimes.withColumn("is_there", is_there)
        .where("is_there")
        .select("key", *_LAST, kind.alias("kind"), "image", "lifetime")
    )


def _in_lifetimes(events: DataFrame) -> DataFrame:
    """
    Follow rows through incomplete moves: the events of each row, with its lifetime.

    The history of a key is divided into intervals; each begins with an event other than a part. An
    interval that begins with an arrival continues the one that the row left; the first of such a
    chain names the `lifetime`. Which interval continues which is computed in order of position on
    the driver, from two positions per incomplete move; images stay in the tasks.
    """
    intervals = _intervals(events)
    came_from_row = F.col("previous.kind").isin(_BASE, _ARRIVE)
    left = intervals.where(F.col("kind") == _LEAVE).select(
        F.col("commit_lsn").alias("to_lsn"),
        F.col("ordinal").alias("to_ordinal"),
        F.when(came_from_row, F.col("previous.commit_lsn")).alias("since_lsn"),
        F.when(came_from_row, F.col("previous.ordinal")).alias("since_ordinal"),
    )
    first = _first_intervals(
        left.toArrow().sort_by([("to_lsn", "ascending"), ("to_ordinal", "ascending")])
    )
    began = F.struct(
        F.col("since.commit_lsn").alias("first_lsn"), F.col("since.ordinal").alias("first_ordinal")
    )
    lifetime = F.when(F.col("since.kind") == _BASE, began).when(
        F.col("first_lsn").isNotNull(), F.struct("first_lsn", "first_ordinal")
    )
    return (
        intervals.where(F.col("since.kind").isin(_BASE, _ARRIVE))
        .withColumns({"to_lsn": began["first_lsn"], "to_ordinal": began["first_ordinal"]})
        .join(events.sparkSession.createDataFrame(first), ["to_lsn", "to_ordinal"], "left")
        .withColumn("lifetime", lifetime)
        .where(F.col("lifetime").isNotNull())
    )


def _intervals(events: DataFrame) -> DataFrame:
    """Each event with the first event of its interval, of the previous one, and of the last."""
    begins = F.when(F.col("kind") != _PART, F.struct("commit_lsn", "ordinal", "kind"))
    in_order = Window.partitionBy("key").orderBy("commit_lsn", "ordinal")
    always = Window.unboundedPreceding

    def last(until: int) -> Column:
        return F.last(begins, ignorenulls=True).over(in_order.rowsBetween(always, until))

    return events.dropDuplicates(["key", "commit_lsn", "ordinal"]).select(
        "*",
        last(0).alias("since"),
        last(-1).alias("previous"),
        last(Window.unboundedFollowing).alias("final"),
    )


def _first_intervals(left: pa.Table) -> pa.Table:
    """
    For each arrival of a row that existed, the first interval of that row.

    Shape:
        left: in order, the place of each move, and where the interval that it ended began; nulls
            when there was no row to move.
    """
    first: dict[Place, Place | None] = {}
    for to_lsn, to_ordinal, since_lsn, since_ordinal in zip(
        *(column.to_pylist() for column in left.columns), strict=True
    ):
        since = None if since_lsn is None else Place(Lsn(since_lsn), since_ordinal)
        first[Place(Lsn(to_lsn), to_ordinal)] = since and first.get(since, since)
    names = ("to_lsn", "to_ordinal", "first_lsn", "first_ordinal")
    rows = [
        dict(zip(names, (*to, *place), strict=True))
        for to, place in first.items()
        if place is not None
    ]
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in names]))


# --- every state of a row -----------------------------------------------------------------------


def states(changes: DataFrame, ends: DataFrame, *, has_parts: bool) -> DataFrame:
    """
    What each change of a relation with a key does at its key, and which row it belongs to.

    Shape:
        changes: row changes, all of which count, with the columns of `_VERSIONS`.
        ends: where the row of a key ends that is there then: `key`, position, schema and time.
        has_parts: whether any change is one that `incomplete` gives.
        result: the same columns; `removed_by`, why a row ends, or null; `lifetime`, of the row that
            is there afterwards, or null; `image`, what the change carries of it. Images of a
            lifetime laid over each other, in order, are the row.
    """
    deleted = F.when(F.col("kind") == _END, "delete")
    moves = _departures(changes.where(F.col("old_key").isNotNull()))
    events = (
        _events(changes)
        .withColumn("removed_by", deleted)
        .unionByName(moves.withColumn("removed_by", F.lit("key change")))
        .unionByName(_ends(ends))
    )
    first = F.struct(
        F.col("commit_lsn").alias("first_lsn"), F.col("ordinal").alias("first_ordinal")
    )
    shown = ("key", *_LAST, "removed_by", "image")
    if not has_parts:
        return events.select(*shown, F.when(F.col("kind") == _BASE, first).alias("lifetime"))
    kept = events.localCheckpoint()  # an interval is looked at from several sides
    places = ["key", "commit_lsn", "ordinal"]
    lifetimes = _in_lifetimes(kept).select(*places, "lifetime")
    return kept.join(lifetimes, places, "left").select(*shown, "lifetime")


def _ends(ends: DataFrame) -> DataFrame:
    return ends.select(
        "key",
        *_LAST,
        "removed_by",
        F.lit(_END).alias("kind"),
        F.lit(None).cast("map<string,string>").alias("image"),
    )


# --- relations without a key --------------------------------------------------------------------


def _keyless(changes: DataFrame) -> DataFrame:
    """
    Every row as often as it was added and not removed; of equal rows the first ones are removed.

    So the rows that remain have the places of the last additions, and another row that is added
    leaves theirs as they are.
    """
    before, after = F.col("before"), F.col("after")
    is_new = F.col("op").isin(Op.INSERT.value, Op.READ.value)
    added = F.when(F.col("op") != Op.DELETE.value, _whole(after))
    removed = F.when(~is_new, _whole(before))
    sound = changes.where(is_new | _is_whole(before))
    sides = F.array(_side(1, "added"), _side(-1, "removed"))
    newest_first = Window.partitionBy("entries").orderBy(F.desc("place"))
    always, now = Window.unboundedPreceding, Window.currentRow
    is_added = (F.col("count") > 0).cast("int")
    counted = (
        sound.select(
            F.struct(*_LAST).alias("place"),
            entries(added).alias("added"),  # here Spark compiles it, and in `explode` it does not
            entries(removed).alias("removed"),
        )
        .select("place", F.inline(sides))
        .where(F.col("entries").isNotNull())
        .withColumns(
            {
                "times": F.sum("count").over(
                    newest_first.rowsBetween(always, Window.unboundedFollowing)
                ),
                "rank": F.sum(is_added).over(newest_first.rowsBetween(always, now)),
            }
        )
        .where((F.col("count") > 0) & (F.col("rank") <= F.col("times")))
    )
    return counted.select(
        F.lit(None).cast("array<string>").alias("key"),
        F.map_from_entries("entries").alias("row"),
        *(F.col("place")[name].alias(name) for name in _LAST),
    )


def _side(count: int, name: str) -> Column:
    """One row added or removed."""
    return F.struct(F.lit(count).alias("count"), F.col(name).alias("entries"))
