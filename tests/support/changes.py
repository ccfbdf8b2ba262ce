"""Changes for the tests of sinks, made from few facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, Image, LoggedChanges
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema

COMMITTED_AT_US: Final = 1_767_225_600_000_001
"""2026-01-01 00:00:00.000001 UTC."""


def schema(
    columns: Mapping[str, str],
    key: tuple[str, ...] = ("id",),
    *,
    namespace: str = "public",
    name: str = "orders",
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
) -> TableSchema:
    """A relation of columns with these value types."""
    listed = tuple(
        Column(column, number, 20, value_type, value_type=value_type)
        for number, (column, value_type) in enumerate(columns.items(), start=1)
    )
    return TableSchema(1, 16400, namespace, name, identity, listed, key)


ORDERS: Final = schema({"id": "int8", "amount": "numeric", "note": "text"})


def change(
    op: str = "insert",
    table: TableSchema | None = ORDERS,
    *,
    before: Image | None = None,
    after: Image | None = None,
    **facts: Any,
) -> Change:
    """A change of a table; its key is that of `after`, else that of `before`."""
    image = after if after is not None else before
    if table is not None and "key" not in facts and table.key and image is not None:
        facts["key"] = tuple(image[name] for name in table.key)
    facts.setdefault("ordinal", 0)
    facts["commit_lsn"] = Lsn(facts.get("commit_lsn", 0x1A2B3C))
    facts.setdefault("xid", 731)
    facts.setdefault("committed_at_us", COMMITTED_AT_US)
    return Change(
        epoch=1,
        end_lsn=Lsn(facts["commit_lsn"] + 48),
        op=op,
        namespace="public" if table is None else table.namespace,
        relation="" if table is None else table.name,
        relation_id=16400,
        schema=table,
        before=before,
        after=after,
        **facts,
    )


def logged(changes: Sequence[Change]) -> LoggedChanges:
    """Changes as a reader of the log gives them."""
    rows = [
        {
            **{name: getattr(subject, name) for name in CHANGES.names if hasattr(subject, name)},
            "committed_at": subject.committed_at_us,
            "schema_id": None if subject.schema is None else subject.schema.schema_id,
            **{name: _entries(getattr(subject, name)) for name in ("before", "after")},
        }
        for subject in changes
    ]
    schemas = {c.schema.schema_id: c.schema for c in changes if c.schema is not None}
    return LoggedChanges(pa.Table.from_pylist(rows, CHANGES), schemas)


def _entries(image: Image | None) -> list[tuple[str, str | None]] | None:
    return None if image is None else list(image.items())
