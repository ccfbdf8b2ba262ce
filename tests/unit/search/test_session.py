"""Which relation an index is of."""

from __future__ import annotations

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema, named_at
from pgstream_dagster.search.session import relation_named

COLUMN = Column("id", 1, 23, "integer")


def version(relation_id: int, name: str) -> TableSchema:
    return TableSchema(1, relation_id, "public", name, ReplicaIdentity.DEFAULT, (COLUMN,), ("id",))


def chosen(points: dict[int, int], *history: TableSchema) -> int | None:
    """The relation of `public.a`, of those copied at these points."""
    copied = {
        oid: (Lsn(at), [v for v in history if v.relation_id == oid]) for oid, at in points.items()
    }
    relation = relation_named(TablePattern.parse("public.a"), copied, named_at(history))
    return None if relation is None else relation.relation_id


def test_a_table_that_took_the_name_of_a_dropped_one_has_it_however_late_that_was_copied() -> None:
    assert chosen({7: 10, 8: 90}, version(7, "c"), version(8, "a"), version(7, "a")) == 7


def test_a_table_that_has_the_name_comes_before_one_that_had_it() -> None:
    assert chosen({7: 10, 8: 90}, version(8, "a"), version(8, "b"), version(7, "a")) == 7


def test_of_tables_that_had_the_name_the_one_copied_last_is_followed() -> None:
    history = version(7, "a"), version(7, "b"), version(8, "a"), version(8, "c")
    assert chosen({7: 90, 8: 10}, *history) == 7
    assert chosen({}) is None
