"""
Compares a live index with the fold of the log, while changes keep reaching both.

It compares the documents that no change has touched since the recorded position of the index; the
next comparison covers the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from pgstream_dagster.changelog import replay
from pgstream_dagster.delta import jvm
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import verify
from pgstream_dagster.search.control import Generation
from pgstream_dagster.search.indexer import OTHER_LOG, OTHER_RULES
from pgstream_dagster.search.reindex import difference
from pgstream_dagster.search.session import Relation, SearchSession, opened
from pgstream_dagster.search.verify import Difference


@dataclass(frozen=True, slots=True)
class Compared:
    """
    How the index behind an alias differs from the log at a position.

    Without a `difference` nothing could be compared; `reason` is why.
    """

    alias: str
    index: str | None
    at: Lsn
    difference: Difference | None
    reason: str | None = None

    @property
    def identical(self) -> bool:
        """The index was compared, and nothing differs."""
        return self.difference is not None and self.difference.identical


@named
def compare(pipeline: Pipeline, alias: str) -> Compared:
    """
    Compare the index behind an alias with the log, in a Spark job; holds up no other process.

    Raises:
        NoSuchAlias: the pipeline file has no such index.
        AliasTaken, BuildFailed, SearchUnreachable, SearchRefused, SearchFailed
    """
    with opened(pipeline, alias) as session:
        generation = session.live(alias)
        if generation is None:
            return Compared(alias, None, Lsn(0), None, "no index is behind it yet")
        outdated = _outdated(session, generation, session.relations().get(alias))
        differs = None if outdated else _difference(session, generation)
        return Compared(alias, generation.index, generation.delivered, differs, outdated)


def _outdated(
    session: SearchSession, generation: Generation, relation: Relation | None
) -> str | None:
    """Why an index cannot equal the log until it is re-indexed."""
    if not session.has_log_of(generation):
        return OTHER_LOG
    if generation.epoch != session.epoch:
        return "it is of another source"
    if relation is not None and generation.relation_id != relation.relation_id:
        return "another table has its name"
    if relation is not None and generation.copied_at < relation.copied_at:
        return "its table was copied again"
    if session.pipeline.index_rules(generation.alias).fingerprint != generation.modified:
        return OTHER_RULES
    return generation.outdated


def _difference(session: SearchSession, generation: Generation) -> Difference:
    """Compare at the generation's recorded position."""
    at = generation.delivered

    def touched(rendered: DataFrame) -> DataFrame:
        spark, pipeline = jvm.spark(session.pipeline.jvm), session.pipeline
        upto = session.watermark()  # no index is ahead of the log
        changes = replay.changes(spark, pipeline.lake, generation.epoch, at, upto)
        of_table = changes.where(changes["relation_id"] == generation.relation_id)
        return verify.ids_of(session.modified(generation, of_table), rendered, generation)

    return difference(session, generation, at, touched)
