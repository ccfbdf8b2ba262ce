"""What the operations on search indices share: the cluster, the log, and their connection."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.dead_letters import DeadLetters
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.table_specs import DEAD_LETTERS
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.config.transformers import Uniqueness
from pgstream_dagster.delta import delta_table, jvm
from pgstream_dagster.errors import MissingSetting, NotCopied, NotIndexable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.readers.log_reader import LogReader
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema, named_at
from pgstream_dagster.search import build, control, generations, modified
from pgstream_dagster.search.batch import Image
from pgstream_dagster.search.cluster import Cluster, SearchSettings
from pgstream_dagster.search.control import Control, Generation, GenerationLease
from pgstream_dagster.search.fields import fields_of, unknown_names
from pgstream_dagster.search.ids import Key, document_id
from pgstream_dagster.search.indexer import Indexer


@dataclass(frozen=True, slots=True)
class Relation:
    """The relation behind an alias: the last copied one that has, or had, the table's name."""

    relation_id: int
    copied_at: Lsn
    versions: tuple[TableSchema, ...]  # oldest first

    @property
    def schema(self) -> TableSchema:
        """The newest version."""
        return self.versions[-1]


@dataclass(frozen=True, slots=True)
class SearchSession:
    """The opened indices of one pipeline; each thread has its own."""

    opened: OpenPipeline
    settings: SearchSettings
    cluster: Cluster
    letters: DeadLetters

    @property
    def pipeline(self) -> Pipeline:
        """The opened pipeline."""
        return self.opened.pipeline

    @property
    def epoch(self) -> int:
        """The newest incarnation of the source."""
        return self.opened.epoch

    def config(self, alias: str) -> IndexConfig:
        """The definition of an alias in the pipeline file. Raises `NoSuchAlias`."""
        return self.pipeline.config.index(alias)

    def control(self, alias: str) -> Control:
        """The records of an alias."""
        return Control(self.cluster, self.pipeline.name, alias)

    def live(self, alias: str) -> Generation | None:
        """The generation that an alias is on; `None`: no index, or no record of it."""
        live = generations.live(self.cluster, alias)
        return None if live is None else self.control(alias).generation(live.index)

    def watermark(self) -> Lsn:
        """The current watermark of the log."""
        return self.opened.watermark() or Lsn(0)

    def relation(self, alias: str) -> Relation:
        """
        The current relation of an alias.

        Raises:
            NotCopied: none was copied, or the log has not reached its copy.
        """
        table, relations = self.config(alias).table, self.relations()
        if alias not in relations:
            raise NotCopied(alias, table)
        return relations[alias]

    def relations(self) -> dict[str, Relation]:
        """The current relation of each alias whose table's copy is in the log."""
        copied = self.opened.copied_relations()
        places = named_at(version for _, version in self.opened.schema_log.history(self.epoch))
        named = {
            alias: relation_named(TablePattern.parse(config.table), copied, places)
            for alias, config in self.pipeline.config.search.items()
        }
        return {alias: relation for alias, relation in named.items() if relation is not None}

    def new_generation(self, alias: str, relation: Relation) -> Generation:
        """
        The record of a generation that begins with the relation's current state.

        Raises:
            NotIndexable: the configuration does not fit the table.
        """
        config, rules = self.config(alias), self.pipeline.index_rules(alias)
        named = self.opened.schema_log.named_versions((self.epoch, relation.relation_id))
        schema = modified.versions(rules, named)[-1]
        _require_indexable(alias, config, schema)
        _require_distinct(alias, config, rules, schema)
        return Generation(
            alias,
            0,
            control.State.BUILDING,
            self.epoch,
            relation.relation_id,
            relation.copied_at,
            Lsn(0),
            fields_of(schema, config),
            config.id,
            asked=config.documents(),
            modified=rules.fingerprint,
            log=self.opened.log_id,
        )

    def has_log_of(self, generation: Generation) -> bool:
        """Whether a generation follows this change log; one that names none does."""
        return generation.log in ("", self.opened.log_id)

    def indexer(self, alias: str, lease: GenerationLease) -> Indexer:
        """The writer of the generation that a lease holds."""
        return Indexer(
            self.cluster,
            lease,
            self.config(alias),
            self.opened.schema_log,
            self.pipeline.index_rules(alias),
            self.letters,
            LogReader(self.opened, lease.generation.delivered),
            partial(self.key_rows, lease.generation),
        )

    def rows(self, generation: Generation, before: Lsn) -> DataFrame:
        """The fold of a generation's table up to a watermark."""
        spark, relation = jvm.spark(self.pipeline.jvm), generation.relation_id
        changes = replay.relation_changes(
            spark, self.pipeline.lake, generation.epoch, relation, before=before
        )
        return fold(self.modified(generation, changes), self.versions(generation))

    def versions(self, generation: Generation) -> list[TableSchema]:
        """Every version of a generation's table, oldest first, as its index has them."""
        rules = self.pipeline.index_rules(generation.alias)
        return modified.versions(rules, self._landed_versions(generation))

    def modified(self, generation: Generation, changes: DataFrame) -> DataFrame:
        """Changes of a generation's table as its index sees them."""
        rules = self.pipeline.index_rules(generation.alias)
        return modified.changes(changes, rules, self._landed_versions(generation))

    def _landed_versions(self, generation: Generation) -> list[TableSchema]:
        return self.opened.schema_log.named_versions((generation.epoch, generation.relation_id))

    def key_rows(
        self, generation: Generation, keys: Sequence[Key], before: Lsn
    ) -> dict[str, Image]:
        """The rows of a few keys, by document id; a Spark job."""
        rows, key = self.rows(generation, before), build.key(generation)
        keys_as_columns = [F.array(*map(F.lit, values)).cast("array<string>") for values in keys]
        selected = rows.where(key.isin(keys_as_columns)).select(key.alias("k"), "row")
        attnums = self.versions(generation)[-1].attnums
        return {
            document_id(tuple(row["k"])): {attnums[name]: v for name, v in row["row"].items()}
            for row in selected.collect()
        }


@contextmanager
def opened(pipeline: Pipeline, *aliases: str) -> Generator[SearchSession]:
    """
    Open a pipeline's indices; `aliases` must be in the pipeline file.

    Raises:
        NoSuchAlias
        MissingSetting: no search cluster is configured.
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


def relation_named(
    table: TablePattern,
    copied: Mapping[int, tuple[Lsn, list[TableSchema]]],
    places: Mapping[int, int],
) -> Relation | None:
    """
    The relation with this name, else one that had it.

    Of several with the name the one that took it last: the others were dropped, and may have been
    copied later. Of several that had it the one copied last.

    Shape:
        copied: relation -> consistent point and versions.
        places: relation -> when it took its name, as `named_at` gives it.
    """
    matching = list[tuple[bool, int, Lsn, int]]()
    for oid, (copied_at, versions) in copied.items():
        names = [(version.namespace, version.name) for version in versions]
        has_name = table.matches(*names[-1])
        if any(table.matches(*name) for name in names):
            matching.append((has_name, places[oid] if has_name else 0, copied_at, oid))
    if not matching:
        return None
    *_, copied_at, oid = max(matching)
    return Relation(oid, copied_at, tuple(copied[oid][1]))


def _require_distinct(alias: str, config: IndexConfig, rules: Rules, schema: TableSchema) -> None:
    """
    Refuse rules that give rows one id which `config.id` keeps apart; those of a key are checked.

    Raises:
        NotIndexable
    """
    chosen = {*(config.id or ())}
    for modifier in rules.configs.values():
        for rule in modifier.rules_of(chosen):
            if type(rule).uniqueness is Uniqueness.LOSSY and not rule.allow_uniqueness_loss:
                reason = f"transformer {rule.name!r} makes different ids equal; use another one"
                raise NotIndexable(alias, schema.full_name, reason)


def _require_indexable(alias: str, config: IndexConfig, schema: TableSchema) -> None:
    if unknown := unknown_names(schema, config):
        reason = f"it has no column {', '.join(map(repr, unknown))}"
    elif config.id is None and not schema.key:
        reason = "it has no key; name the columns that make a document's id under 'id'"
    elif config.id is not None and schema.key:
        reason = f"its key ({', '.join(schema.key)}) makes the ids; remove 'id'"
    elif config.id is not None and schema.identity is not ReplicaIdentity.FULL:
        reason = (
            f"ids of columns need old rows: ALTER TABLE {schema.full_name} REPLICA IDENTITY FULL"
        )
    else:
        return
    raise NotIndexable(alias, schema.full_name, reason)
