"""
What the old rows of a partition tree carry: pure, no I/O.

Under `publish_via_partition_root` Postgres describes the root, then the leaf, then sends the leaf's
row under the root's name. The row is marked as the root's replica identity would have it, but an
old row has what the *leaf* logged, with NULL for the rest. So a root is trusted only as far as its
leaves, as they were described before its row. The catalog says which relations are its leaves; one
that was dropped or detached since may have been a leaf if it has the root's columns.

Source:
    maybe_send_schema in src/backend/replication/pgoutput/pgoutput.c
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema
from pgstream_dagster.wire.pgoutput import Relation


def logs_less(leaf: Relation, root: Relation) -> bool:
    """Whether a relation has the root's columns, and old rows with fewer of them."""
    if leaf.identity is ReplicaIdentity.FULL or leaf.relation_id == root.relation_id:
        return False
    logged, expected = _logged(leaf), _logged(root)
    # Of a leaf that logs nothing Postgres refuses every UPDATE and DELETE.
    return bool(logged) and not logged >= expected and shape(leaf.columns) == shape(root.columns)


def as_logged(schema: TableSchema, leaves: Iterable[Relation]) -> tuple[TableSchema, str | None]:
    """
    The root's version, with the identity that the old rows of all its leaves satisfy.

    And the leaf, if any, whose old rows do not identify a row: the version has identity NOTHING
    then, though there are such rows.

    Shape:
        leaves: those that log less than the root.
    """
    for leaf in leaves:
        if not schema.key or not _logged(leaf).issuperset(schema.key):
            name = f"{leaf.namespace}.{leaf.name}"
            return replace(schema, identity=ReplicaIdentity.NOTHING), name
        if schema.identity is ReplicaIdentity.FULL:
            schema = replace(schema, identity=ReplicaIdentity.DEFAULT)
    return schema, None


def _logged(relation: Relation) -> set[str]:
    return {column.name for column in relation.columns if column.in_key}


class NamedColumn(Protocol):
    """A column, of a description or of a version."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def type_oid(self) -> int: ...  # noqa: D102


def shape(columns: Iterable[NamedColumn]) -> frozenset[tuple[str, int]]:
    """A leaf has its root's columns, in any order."""
    return frozenset((column.name, column.type_oid) for column in columns)
