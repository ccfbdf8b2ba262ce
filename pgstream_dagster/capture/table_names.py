"""
Tables under the name that they have now.

Postgres describes a table again when it was altered. Two renames are none to it: that of a
partition tree's root, which is described beside the first row of each leaf, and before Postgres 16
that of a schema. Rows would come under the former name until the table or a leaf is altered or
analyzed; a name that a transaction gave the root and took back could stay as long. A new connection
begins with new descriptions.

Source:
    maybe_send_schema and rel_sync_cache_relation_cb in
    src/backend/replication/pgoutput/pgoutput.c
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pgstream_dagster.errors import TableRenamed
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.publication import PublishedTable


class TableNames:
    """The names in the catalog: the recopier reads them, the landing compares them once."""

    def __init__(self) -> None:
        self._read: tuple[Lsn, Mapping[int, str]] | None = None

    def read(self, tables: Iterable[PublishedTable], read_at: Lsn) -> None:
        """Remember the names; `read_at` lies after every rename that they show."""
        self._read = read_at, {table.relation_id: table.full_name for table in tables}

    def require_described(self, watermark: Lsn, described: Callable[[int], str | None]) -> None:
        """
        Compare names, once the watermark is past them, with those that rows come under.

        Raises:
            TableRenamed: a new connection brings the new name.
        """
        if self._read is None or watermark < self._read[0]:
            return
        (_, names), self._read = self._read, None
        for relation_id, name in names.items():
            former = described(relation_id)
            if former is not None and former != name:
                raise TableRenamed(former, name)
