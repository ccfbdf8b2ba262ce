"""What a relation looked like at one point of the stream: columns, identity, key. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from pgstream_dagster.patterns import full_name

MAX_SCHEMA_ID = (1 << 63) - 1


class ReplicaIdentity(StrEnum):
    """
    What the old image of an UPDATE or DELETE contains (`pg_class.relreplident`).

    Source:
        https://www.postgresql.org/docs/current/catalog-pg-class.html
    """

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Column:
    """
    One published column.

    `attnum` is its identity: a rename keeps it, drop and add changes it. `missing` is the value
    that rows older than the column show (`pg_attribute.attmissingval` as output text), `None`
    when there is none, that is NULL. `value_type` says how the values' text is written, whatever
    the type is called: the base type of a domain, `enum`, `composite`, `range`, `<element>[]`
    (see `sql/source/types.sql`); empty when the catalog had forgotten the type. `modified` is a
    digest of what `source.modifiers` did to the values; empty when they are as Postgres sent them.
    """

    name: str
    attnum: int
    type_oid: int
    type_name: str  # as format_type prints it, with modifier and namespace: 'numeric(12,2)'
    typmod: int = -1
    not_null: bool = False
    default: str | None = None  # the expression's text, for readers of schema_log
    missing: str | None = None
    value_type: str = ""  # no part of schema_id: it follows from type_oid
    modified: str = ""


@dataclass(frozen=True)
class TableSchema:
    """
    One version of one relation.

    `key` names the columns whose values the old image is guaranteed to carry, in key order:
    DEFAULT the primary key, INDEX that index, FULL the primary key if it is not deferrable.
    Empty: the relation has no key and folds as a multiset of whole rows.
    """

    epoch: int
    relation_id: int
    namespace: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    @cached_property
    def schema_id(self) -> int:
        """
        63-bit hash of (epoch, relation, columns, key).

        A hash and not a counter, so that two writers cannot give one id two meanings. The
        relation's name is not part of it: a rename of the table is not a new layout.
        """
        layout = json.dumps(
            [
                self.epoch,
                self.relation_id,
                [_layout(column) for column in self.columns],
                list(self.key),
                self.identity.value,
            ],
            ensure_ascii=True,
        )
        digest = hashlib.blake2b(layout.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") & MAX_SCHEMA_ID

    @property
    def version(self) -> tuple[int, str, str]:
        """The layout and the name, by which `schema_log` distinguishes versions."""
        return self.schema_id, self.namespace, self.name

    @cached_property
    def attnums(self) -> Mapping[str, int]:
        """Column name to attnum."""
        return {column.name: column.attnum for column in self.columns}

    @cached_property
    def key_attnums(self) -> tuple[int, ...]:
        """The key's columns by identity: equal for two versions iff they have the same key."""
        return tuple(self.attnums[name] for name in self.key)

    @property
    def full_name(self) -> str:
        """`namespace.name`, quoted where it would be ambiguous."""
        return full_name(self.namespace, self.name)

    def to_json(self) -> str:
        """The schema as `schema_log` and `ddl` rows carry it; `from_json` reads it back."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TableSchema:
        """The schema that `to_json` wrote; members that are not a schema's are passed over."""
        return cls.from_fields(json.loads(text))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> TableSchema:
        """As `from_json`, of its object."""
        return cls(
            epoch=fields["epoch"],
            relation_id=fields["relation_id"],
            namespace=fields["namespace"],
            name=fields["name"],
            identity=ReplicaIdentity(fields["identity"]),
            columns=tuple(Column(**column) for column in fields["columns"]),
            key=tuple(fields["key"]),
        )


def _layout(column: Column) -> list[int | str | None]:
    """What of a column is part of `schema_id`."""
    layout = [column.attnum, column.name, column.type_oid, column.typmod, column.missing]
    return [*layout, column.modified] if column.modified else layout


def by_id(versions: Iterable[TableSchema]) -> dict[int, TableSchema]:
    """Schema id -> the last version with it, in the order in which these come."""
    last: dict[int, TableSchema] = {}
    for version in versions:
        last.pop(version.schema_id, None)
        last[version.schema_id] = version
    return last


def missing_values(versions: Iterable[TableSchema]) -> dict[int, str | None]:
    """
    What rows older than a column show for it, by attnum.

    As in the version that added the column: the catalog forgets it at the next rewrite.

    Shape:
        versions: of one relation, oldest first.
    """
    missing: dict[int, str | None] = {}
    for column in (column for version in versions for column in version.columns):
        missing.setdefault(column.attnum, column.missing)
    return missing


def names_of(versions: Iterable[TableSchema]) -> list[str]:
    """
    The names that a relation had, the newest first.

    Shape:
        versions: of one relation, each time that one begins to hold, oldest first.
    """
    return list(dict.fromkeys(version.full_name for version in reversed(list(versions))))


def named_at(versions: Iterable[TableSchema]) -> dict[int, int]:
    """
    Relation -> where in the versions of all it took the name that it has at their end.

    Of relations with one name, the one that took it last has it: the others were dropped. The copy
    of a relation says nothing of that; one that takes the name by a rename may be copied long ago.

    Shape:
        versions: of one epoch, each time that one begins to hold, in that order.
    """
    names, places = dict[int, str](), dict[int, int]()
    for place, version in enumerate(versions):
        if names.get(version.relation_id) != version.full_name:
            names[version.relation_id] = version.full_name
            places[version.relation_id] = place
    return places
