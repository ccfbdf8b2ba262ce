"""Changes made by hand for tests of sinks: a table's version, then its changes in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, ChangeBatch, Key
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks.base import Sink, Verdict


def version(
    name: str,
    columns: Mapping[str, str] | Sequence[Column],
    key: Sequence[str] = ("id",),
    *,
    relation_id: int = 16_400,
    namespace: str = "public",
    epoch: int = 1,
) -> TableSchema:
    """A version of a table: column name to type, attnums in that order."""
    if isinstance(columns, Mapping):
        columns = [
            Column(column, place, 0, type_name)
            for place, (column, type_name) in enumerate(columns.items(), start=1)
        ]
    return TableSchema(
        epoch, relation_id, namespace, name, ReplicaIdentity.DEFAULT, tuple(columns), tuple(key)
    )


class History:
    """Makes changes with rising positions; `end` ends a transaction of the source."""

    def __init__(self) -> None:
        self.commit_lsn = 1_000
        self._ordinals: Iterator[int] = itertools.count()

    def end(self) -> None:
        self.commit_lsn += 1_000
        self._ordinals = itertools.count()

    def insert(self, schema: TableSchema, op: str = "insert", **after: str | None) -> Change:
        return self._change(op, schema, key=key_of(schema, after), after=after)

    def read(self, schema: TableSchema, **after: str | None) -> Change:
        return self.insert(schema, "read", **after)

    def update(
        self,
        schema: TableSchema,
        old_key: Key | None = None,
        before: Mapping[str, str | None] | None = None,
        **after: str | None,
    ) -> Change:
        key = key_of(schema, after)
        return self._change("update", schema, key=key, old_key=old_key, before=before, after=after)

    def delete(self, schema: TableSchema, **before: str | None) -> Change:
        return self._change("delete", schema, key=key_of(schema, before), before=before)

    def truncate(self, schema: TableSchema) -> Change:
        return self._change("truncate", schema)

    def copy(self, schema: TableSchema, payload: str = "first") -> Change:
        return self._change("copy", schema, payload=payload)

    def _change(self, op: str, schema: TableSchema, **fields: object) -> Change:
        return Change(
            epoch=schema.epoch,
            commit_lsn=Lsn(self.commit_lsn),
            ordinal=next(self._ordinals),
            end_lsn=Lsn(self.commit_lsn + 8),
            op=op,
            namespace=schema.namespace,
            relation=schema.name,
            relation_id=schema.relation_id,
            schema=schema,
            **fields,  # type: ignore[arg-type]
        )


def key_of(schema: TableSchema, image: Mapping[str, str | None]) -> Key | None:
    return tuple(image[name] for name in schema.key) if schema.key else None


def batch(*changes: Change, cursor: str = "1", ends: bool = True) -> ChangeBatch:
    return ChangeBatch(list(changes), cursor, ends)


def delivered(sink: Sink, changes: ChangeBatch) -> dict[int, Verdict]:
    """Deliver as the follower does: again without what has a verdict; the verdicts, by index."""
    verdicts = dict(sink.deliver(changes))
    if verdicts:
        kept = [c for index, c in enumerate(changes.changes) if index not in verdicts]
        assert sink.deliver(ChangeBatch(kept, changes.cursor, changes.ends_transaction)) == {}
    return verdicts
