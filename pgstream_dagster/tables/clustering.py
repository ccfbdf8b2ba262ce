"""
Clustering of typed tables: which columns the pipeline file names, and how a table gets them.

Source:
    https://docs.delta.io/latest/delta-clustering.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException

from pgstream_dagster.errors import NotClustered
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.tables.columns import existing, quoted
from pgstream_dagster.tables.progress import recorded
from pgstream_dagster.tables.relations import copied_relations
from pgstream_dagster.tables.target import Target


@dataclass(frozen=True, slots=True)
class Clustering:
    """The columns of a table of the source by which its typed table shall be clustered."""

    source: TableSchema
    columns: tuple[str, ...]

    def attnums(self) -> list[int]:
        """
        Those of the columns.

        Raises:
            NotClustered: the table has not all of them.
        """
        attnums = {column.name: column.attnum for column in self.source.columns}
        if missing := [name for name in self.columns if name not in attnums]:
            raise NotClustered(self.source.full_name, missing, "the table has no such column")
        return [attnums[name] for name in self.columns]


def chosen(pipeline: Pipeline) -> Mapping[str, Clustering]:
    """What the pipeline file says of each typed table that was merged, by the table's name."""
    config = pipeline.config.tables
    if config is None:
        return {}
    with pipeline.open() as opened:
        progress = recorded(opened).progress
        relations = copied_relations(opened, Lsn(progress.position))
    copied = {
        name: relations[entry.relation_id]
        for name, entry in progress.tables.items()
        if entry.relation_id in relations
    }
    return {n: Clustering(c.newest, config.cluster_of(*c.names)) for n, c in copied.items()}


def cluster(target: Target, clustering: Clustering | None) -> None:
    """
    Have the next OPTIMIZE of a table bring its rows together by these columns.

    A column that the typed table does not have yet is left out.

    Raises:
        NotClustered: Delta refuses a column, or the source has none of its name.
    """
    state = None if clustering is None else target.state()
    if clustering is None or state is None:
        return
    names = {attnum: name for attnum, (name, _) in existing(state.columns).items()}
    columns = [names[attnum] for attnum in clustering.attnums() if attnum in names]
    if columns == list(state.clustering):
        return
    listed = f"({', '.join(map(quoted, columns))})" if columns else "NONE"
    try:
        target.evolve([f"CLUSTER BY {listed}"])
    except AnalysisException as error:
        if not (error.getCondition() or "").startswith("DELTA_CLUSTER"):
            raise
        raise NotClustered(clustering.source.full_name, columns, str(error)) from error
