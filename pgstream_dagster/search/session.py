"""What the operations on search indices share: the cluster, the log, and what joins them."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.dead_letters import DeadLetters
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.table_specs import DEAD_LETTERS
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.delta import delta_table, jvm
from pgstream_dagster.errors import MissingSetting, NotCopied, NotIndexable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema
from pgstream_dagster.search import build, control, generations
from pgstream_dagster.search.batch import Image
from pgstream_dagster.search.cluster import Cluster, SearchSettings
from pgstream_dagster.search.control import Control, Generation, Lease
from pgstream_dagster.search.fields import unknown_names
from pgstream_dagster.search.follow import overrides, wanted_fields
from pgstream_dagster.search.ids import document_id
from pgstream_dagster.search.indexer import Indexer


@dataclass(frozen=True, slots=True)
class Relation:
    """The relation behind an alias: the newest copied one that has the table's name, or had it."""

    relation_id: int
    copied_at: Lsn
    versions: tuple[TableSchema, ...]  # oldest first

    @property
    def schema(self) -> TableSchema:
        """The newest version."""
        return self.versions[-1]


@dataclass(frozen=True, slots=True)
class SearchSession:
    """One pipeline's indices, opened; threads have one each."""

    opened: OpenPipeline
    settings: SearchSettings
    cluster: Cluster
    letters: DeadLetters

    @property
    def pipeline(self) -> Pipeline:
        """What was opened."""
        return self.opened.pipeline

    @property
    def epoch(self) -> int:
        """The newest incarnation of the source."""
        return self.opened.epoch

    def config(self, alias: str) -> IndexConfig:
        """What the pipeline file says of an alias. Raises `NoSuchAlias`."""
        return self.pipeline.config.index(alias)

    def control(self, alias: str) -> Control:
        """The records of an alias."""
        return Control(self.cluster, self.pipeline.name, alias)

    def live(self, alias: str) -> Generation | None:
        """The generation that an alias is on; `None`: none, or none that there is a record of."""
        on = generations.live(self.cluster, alias)
        return None if on is None else self.control(alias).of(on.index)

    def watermark(self) -> Lsn:
        """Up to where the log is."""
        return self.opened.watermark() or Lsn(0)

    def relation(self, alias: str) -> Relation:
        """
        The relation that an alias is of now.

        Raises:
            NotCopied: none was copied, or the log has not reached its copy.
        """
        table, found = self.config(alias).table, self.relations()
        if alias not in found:
            raise NotCopied(alias, table)
        return found[alias]

    def relations(self) -> dict[str, Relation]:
        """The relation that each alias is of now; those whose copy is in the log."""
        copied = self.opened.copied_relations()
        found: dict[str, Relation] = {}
        for alias, config in self.pipeline.config.search.items():
            named = _named(TablePattern.parse(config.table), copied)
            if named is not None:
                found[alias] = named
        return found

    def new_generation(self, alias: str, relation: Relation) -> Generation:
        """
        The record of a generation that begins with the relation as it is.

        Raises:
            NotIndexable: the configuration does not fit the table.
        """
        config = self.config(alias)
        _require_indexable(alias, config, relation.schema)
        return Generation(
            alias,
            0,
            control.State.BUILDING,
            self.epoch,
            relation.relation_id,
            relation.copied_at,
            Lsn(0),
            wanted_fields(relation.schema, config),
            config.id,
            asked=config.documents(),
        )

    def indexer(self, alias: str, lease: Lease) -> Indexer:
        """The writer of the generation that a lease holds."""
        generation = lease.generation

        def key_rows(keys: Sequence[tuple[str | None, ...]], at: Lsn) -> Mapping[str, Image]:
            return self.key_rows(generation, keys, at)

        config = self.config(alias)
        return Indexer(self.cluster, lease, config, self.opened.schema_log, self.letters, key_rows)

    def rows(self, generation: Generation, before: Lsn) -> DataFrame:
        """The rows of a generation's table in front of a watermark: the fold."""
        spark, relation = jvm.spark(self.pipeline.jvm), generation.relation_id
        changes = replay.relation_changes(
            spark, self.pipeline.lake, generation.epoch, relation, before=before
        )
        return fold(changes, self.versions(generation))

    def versions(self, generation: Generation) -> list[TableSchema]:
        """Every version of a generation's table, oldest first."""
        return self.opened.schema_log.versions(generation.epoch, generation.relation_id)

    def key_rows(
        self, generation: Generation, keys: Sequence[tuple[str | None, ...]], before: Lsn
    ) -> dict[str, Image]:
        """The rows of a few keys, by document id; a Spark job."""
        rows, key = self.rows(generation, before), build.key(generation)
        wanted = [F.array(*map(F.lit, each)).cast("array<string>") for each in keys]
        found = rows.where(key.isin(wanted)).select(key.alias("k"), "row")
        attnums = self.versions(generation)[-1].attnums
        return {
            document_id(tuple(row["k"])): {attnums[name]: v for name, v in row["row"].items()}
            for row in found.collect()
        }


@contextmanager
def opened(pipeline: Pipeline, *aliases: str) -> Generator[SearchSession]:
    """
    A pipeline's indices; those of `aliases` must be in the pipeline file.

    Raises:
        NoSuchAlias
        MissingSetting: no search cluster is named.
        NotSetUp: `setup` was never run.
    """
    for alias in aliases:
        pipeline.config.index(alias)
    if pipeline.search is None:
        raise MissingSetting("PGSTREAM_SEARCH_URL", "the search cluster's address")
    with (
        pipeline.open() as opened,
        closing(DeadLetters(pipeline.lake, opened.gateway)) as letters,
        closing(Cluster(pipeline.search)) as cluster,
    ):
        delta_table.create(pipeline.lake.dead_letters, DEAD_LETTERS, opened.gateway)
        control.create(cluster)
        yield SearchSession(opened, pipeline.search, cluster, letters)


def _named(
    table: TablePattern, copied: Mapping[int, tuple[Lsn, list[TableSchema]]]
) -> Relation | None:
    """The relation of this name, else one that had it; of several the one copied last."""
    found = [
        (table.matches(versions[-1].namespace, versions[-1].name), copied_at, oid)
        for oid, (copied_at, versions) in copied.items()
        if any(table.matches(version.namespace, version.name) for version in versions)
    ]
    if not found:
        return None
    _, copied_at, oid = max(found)
    return Relation(oid, copied_at, tuple(copied[oid][1]))


def _require_indexable(alias: str, config: IndexConfig, schema: TableSchema) -> None:
    unknown = unknown_names(schema, overrides(config))
    if unknown:
        reason = f"it has no column {', '.join(map(repr, unknown))}"
        raise NotIndexable(alias, schema.full_name, reason)
    if config.id is None and not schema.key:
        reason = "it has no key; name the columns that make a document's id under 'id'"
        raise NotIndexable(alias, schema.full_name, reason)
    if config.id is not None and schema.key:
        reason = f"its key ({', '.join(schema.key)}) makes the ids; remove 'id'"
        raise NotIndexable(alias, schema.full_name, reason)
    if config.id is not None and schema.identity is not ReplicaIdentity.FULL:
        reason = (
            f"ids of columns need old rows: ALTER TABLE {schema.full_name} REPLICA IDENTITY FULL"
        )
        raise NotIndexable(alias, schema.full_name, reason)
