"""
What the old rows of a partition tree carry: pure, no I/O.

Under `publish_via_partition_root` Postgres describes the root, then the leaf, then sends the leaf's
row under the root's name. The row is marked as the root's replica identity would have it, but an
old row has what the *leaf* logged, with NULL for the rest. So a root is believed only as far as the
leaves that were described with it, each of them before its first row.

Source:
    maybe_send_schema in src/backend/replication/pgoutput/pgoutput.c
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from pgstream_dagster.errors import PartitionIdentity
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema
from pgstream_dagster.source.pgoutput import Relation


class Branch(NamedTuple):
    """A root and a leaf of it, described in one breath; `at`: the index of the root's message."""

    at: int
    root: Relation
    leaf: Relation


def branches(
    described: Sequence[tuple[int, Relation]], types: Collection[int], used: Collection[int]
) -> list[Branch]:
    """
    The roots and leaves among the relations that a block describes.

    Shape:
        described: index of the message, and what it says; ascending.
        types: indexes of Type messages, which precede the relation that needs them.
        used: relations that rows or truncates of the block name; a leaf never is one.
    """
    found: list[Branch] = []
    for (at, root), (index, leaf) in pairwise(described):
        is_next = all(between in types for between in range(at + 1, index))
        if is_next and leaf.relation_id not in used and _is_alike(root, leaf):
            found.append(Branch(at, root, leaf))
    return found


def as_logged(schema: TableSchema, leaves: Iterable[Relation]) -> TableSchema:
    """
    The root's version, with the identity that the old rows of all its leaves live up to.

    Raises:
        PartitionIdentity: a leaf's old rows do not say which row they were.
    """
    for leaf in leaves:
        logged = {column.name for column in leaf.columns if column.in_key}
        if leaf.identity is ReplicaIdentity.FULL or not logged:
            continue  # of a leaf that logs nothing Postgres refuses every UPDATE and DELETE
        if not schema.key or not logged.issuperset(schema.key):
            raise PartitionIdentity(schema.full_name, f"{leaf.namespace}.{leaf.name}")
        if schema.identity is ReplicaIdentity.FULL:
            schema = replace(schema, identity=ReplicaIdentity.DEFAULT)
    return schema


def _is_alike(root: Relation, leaf: Relation) -> bool:
    """A leaf has its root's columns, in any order."""
    one, other = ({(c.name, c.type_oid) for c in each.columns} for each in (root, leaf))
    return root.relation_id != leaf.relation_id and one == other
