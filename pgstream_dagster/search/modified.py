"""
The log as an index with modifiers sees it: as if its rows were modified.

Changes are modified before anything is made of them, so ids, documents, folds and comparisons need
no rules of their own. The live indexer calls it for a batch, Spark's tasks for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pgstream_dagster.modifiers.rows import LogModifiers
from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import TableSchema, by_id


class ModifiedLog:
    """
    One relation's versions and changes; one thread uses it, and closes it.

    Shape:
        versions: oldest first, with those under former names, whose rules hold on.
    """

    def __init__(self, rules: Rules, versions: Sequence[TableSchema]) -> None:
        self._modifiers = LogModifiers(rules.knowing(versions), before_log=False)
        self._versions, self._is_plain = list(by_id(versions).values()), rules.is_empty
        self.schemas = [self._modifiers.schema(version) for version in self._versions]
        """The versions in their order, each without what the modifiers leave out."""

    def changes(self, changes: pa.Table) -> pa.Table:
        """Changes of the versions, modified, and of the modified versions."""
        if self._is_plain:
            return changes
        modified = self._modifiers.rows(changes, self._versions)
        ids = pa.array([version.schema_id for version in self._versions], pa.int64())
        new_ids = pa.array([schema.schema_id for schema in self.schemas], pa.int64())
        place = pc.index_in(modified["schema_id"], value_set=ids)
        at = modified.schema.get_field_index("schema_id")
        return modified.set_column(at, modified.schema.field(at), pc.take(new_ids, place))

    def close(self) -> None:
        """End the sessions with servers that transformers ask."""
        self._modifiers.close()


def versions(rules: Rules, relation: Sequence[TableSchema]) -> list[TableSchema]:
    """The versions of a relation as its index has them."""
    with closing(ModifiedLog(rules, relation)) as log:
        return log.schemas


def changes(landed: DataFrame, rules: Rules, relation: Sequence[TableSchema]) -> DataFrame:
    """The changes of one relation as its index sees them."""
    if rules.is_empty:
        return landed
    columns = landed.select(CHANGES.names)
    return columns.mapInArrow(_task(rules, relation), columns.schema)


def _task(
    rules: Rules, relation: Sequence[TableSchema]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(ModifiedLog(rules, relation)) as log:
            for batch in batches:
                rows = pa.Table.from_batches([batch])
                yield from log.changes(rows.cast(CHANGES)).cast(rows.schema).to_batches()

    return run
