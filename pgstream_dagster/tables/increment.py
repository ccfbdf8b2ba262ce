"""
What a part of the log does to the rows of tables whose rows before it are elsewhere.

The fold decides everything, as it does for the whole log. What it cannot know is a row from before:
of an update that leaves columns out, the others, and of a key that moves, too. So each such row is
put in front of the changes as if it had been read, with a *reference* in place of every value: a
text that begins with a character that no text of Postgres has, and then the row's key. References
that remain after the fold say which values to take from which former row, and no value has to be
turned into text and back.

DataFrames in, DataFrames out; small jobs run at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog.fold import fold_together, incomplete
from pgstream_dagster.changelog.spans import ROWS
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema

MARK: Final = "\0"
"""No text of Postgres contains it."""

KEY, IS_THERE, ORIGIN, REFERRED = (
    f"_pgstream_{name}" for name in ("key", "is_there", "origin", "referred")
)

MARKERS: Final = (Op.COPY.value, Op.TRUNCATE.value, Op.GAP.value)
"""Where the rows of a relation begin again, or end."""

BEFORE_ALL: Final = Lsn(0)
"""Where a row from before is put: no change has this position."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the new changes of one relation are."""

    rows: int = 0
    has_marker: bool = False  # a copy, truncate or gap
    has_removals: bool = False  # updates or deletes
    has_moves: bool = False
    is_keyless: bool = False  # some have no key
    shapes: frozenset[tuple[int, int | None]] = frozenset()
    """Of each row its schema_id and, if it is an update, how many columns it has."""

    @property
    def schema_ids(self) -> set[int]:
        """The versions that the rows were decoded with."""
        return {schema_id for schema_id, _ in self.shapes}

    def has_parts(self, versions: Sequence[TableSchema]) -> bool:
        """Whether any update leaves out columns of its version, one of these."""
        sizes = {version.schema_id: len(version.columns) for version in versions}
        return any(size is not None and size != sizes[id_] for id_, size in self.shapes)


@dataclass(frozen=True, slots=True)
class Size:
    """
    How much the outcome of one relation is.

    Shape:
        rows: keys.
        text_bytes: of its values, and of its keys.
        referring_rows: those that take values from a row before.
        referred: the columns that any row refers to.
    """

    rows: int = 0
    text_bytes: int = 0
    referring_rows: int = 0
    referred: Sequence[str] = ()


def summaries(changes: DataFrame) -> dict[int, Summary]:
    """The changes of each relation that has any; one job."""
    op = F.col("op")
    is_row = op.isin(list(ROWS))
    columns = F.coalesce(F.size("after"), F.lit(0))
    shape = F.struct("schema_id", F.when(op == Op.UPDATE.value, columns))
    groups = changes.groupBy("relation_id").agg(
        F.count_if(is_row).alias("rows"),
        F.bool_or(op.isin(list(MARKERS))).alias("has_marker"),
        F.bool_or(op.isin(Op.UPDATE.value, Op.DELETE.value)).alias("has_removals"),
        F.bool_or(F.col("old_key").isNotNull()).alias("has_moves"),
        F.bool_or(is_row & F.col("key").isNull()).alias("is_keyless"),
        F.collect_set(F.when(is_row, shape)).alias("shapes"),
    )
    return {
        row["relation_id"]: Summary(
            row["rows"],
            row["has_marker"],
            row["has_removals"],
            row["has_moves"],
            row["is_keyless"],
            frozenset(map(tuple, row["shapes"])),
        )
        for row in groups.collect()
    }


def since(changes: DataFrame, positions: Mapping[int, Lsn]) -> DataFrame:
    """The changes after the position of their relation; none of other relations."""
    pairs = [F.lit(n).cast("bigint") for r, at in positions.items() for n in (r, int(at))]
    after = F.try_element_at(F.create_map(*pairs), F.col("relation_id"))
    return changes.where(F.col("end_lsn") > after)


def outcome(
    changes: DataFrame,
    histories: Sequence[Sequence[TableSchema]],
    *,
    has_moves: bool,
    has_parts: bool,
    unsent: Mapping[int, Sequence[str]],
) -> DataFrame:
    """
    What the changes of relations with keys leave at each key that they touch.

    Shape:
        changes: row changes, all of which count.
        has_moves, has_parts: whether any has an `old_key`, or is an update without some column.
        unsent: relation -> columns that a row has though no change carries them.
        result: relation_id, KEY, IS_THERE; `row`, null where there is none; ORIGIN, REFERRED; the
            last change's position and time. REFERRED are the columns, by the names of the newest
            version, whose values the row at ORIGIN had; `row` is without them.
    """
    everything = changes
    if has_parts:
        former = _former(changes, histories, unsent)
        everything = changes.unionByName(former, allowMissingColumns=True)
    folded = fold_together(everything, histories, has_moves=has_moves, unsent=unsent)
    references = references_in("row") if has_parts else F.lit(None).cast("map<string,string>")
    return folded.withColumn("references", references).select(
        "relation_id",
        F.col("key").alias(KEY),
        F.col("row").isNotNull().alias(IS_THERE),
        *unreferenced(),
        "commit_lsn",
        "ordinal",
        "committed_at",
    )


def sizes(outcomes: DataFrame) -> dict[int, Size]:
    """The size of each relation's outcome; one job, which also makes the outcome."""
    texts = F.concat_ws("", F.map_values("row"), F.col(KEY))
    groups = outcomes.groupBy("relation_id").agg(
        F.count("*").alias("rows"),
        F.sum(F.octet_length(texts)).alias("text_bytes"),
        F.count(ORIGIN).alias("referring_rows"),
        F.array_distinct(F.flatten(F.collect_set(REFERRED))).alias("referred"),
    )
    return {
        row["relation_id"]: Size(
            row["rows"], row["text_bytes"], row["referring_rows"], row["referred"]
        )
        for row in groups.collect()
    }


def key_row(names: Sequence[str], key: Column) -> Column:
    """A key as a row that has nothing but its columns."""
    return F.map_from_arrays(F.array(*map(F.lit, names)), key)


def references_in(row: str) -> Column:
    """The references among the values of a row."""
    return F.map_filter(row, lambda _, text: text.startswith(MARK))


def unreferenced() -> list[Column]:
    """`row` without its `references`, and what these say: ORIGIN and REFERRED."""
    references = F.col("references")
    has_any = F.size(references) > 0
    others = F.map_filter("row", lambda name, _: ~F.map_contains_key(references, name))
    first = F.get(F.map_values(references), F.lit(0))
    origin = F.from_json(F.substr(first, F.lit(len(MARK) + 1)), "array<string>")
    return [
        F.when(has_any, others).otherwise(F.col("row")).alias("row"),
        F.when(has_any, origin).alias(ORIGIN),
        F.when(has_any, F.map_keys(references)).alias(REFERRED),
    ]


def _former(
    changes: DataFrame,
    histories: Sequence[Sequence[TableSchema]],
    unsent: Mapping[int, Sequence[str]],
) -> DataFrame:
    """A row from before, of references, for each key that an incomplete update touches."""
    ends = F.explode(F.array("key", "old_key")).alias("key")
    updates = incomplete(changes, histories, unsent).select("relation_id", ends)
    keys = updates.where(F.col("key").isNotNull()).distinct()
    newest = F.broadcast(_newest(changes.sparkSession, histories, unsent))
    return rows_before(keys.join(newest, "relation_id"))


def rows_before(keys: DataFrame) -> DataFrame:
    """
    A row of references for each key, as if it had been read before everything.

    Kept where it was computed: the fold needs their places to be the same at each use, and
    distinct.

    Shape:
        keys: relation_id, key, schema_id, and the `names` of the columns of that version.
    """
    reference = F.concat(F.lit(MARK), F.to_json("key"))
    image = F.map_from_arrays("names", F.array_repeat(reference, F.size("names")))
    rows = keys.select(
        "relation_id",
        "key",
        "schema_id",
        F.lit(None).cast("array<string>").alias("old_key"),
        F.lit(Op.READ.value).alias("op"),
        image.alias("after"),
        F.lit(int(BEFORE_ALL)).cast("bigint").alias("commit_lsn"),
        F.monotonically_increasing_id().alias("ordinal"),
    )
    return rows.localCheckpoint()


def _newest(
    spark: SparkSession,
    histories: Sequence[Sequence[TableSchema]],
    unsent: Mapping[int, Sequence[str]],
) -> DataFrame:
    newest = [versions[-1] for versions in histories]
    rows = [
        (v.relation_id, v.schema_id, [*v.attnums, *unsent.get(v.relation_id, ())]) for v in newest
    ]
    return spark.createDataFrame(rows, "relation_id BIGINT, schema_id BIGINT, names ARRAY<STRING>")
