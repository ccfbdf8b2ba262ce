"""
Partition trees under the name that they have now.

Postgres describes the root beside the first row of each leaf on a connection, and not again when
only the root is renamed. Its rows would come under the former name until a leaf is altered or
analyzed; a name that a transaction gave the root and took back could stay as long. A new connection
begins with new descriptions.

Source:
    maybe_send_schema and rel_sync_cache_relation_cb in
    src/backend/replication/pgoutput/pgoutput.c
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pgstream_dagster.errors import TreeRenamed
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.publication import PublishedTable


class TreeNames:
    """The names in the catalog: the recopier reads them, the landing compares them once."""

    def __init__(self) -> None:
        self._read: tuple[Lsn, Mapping[int, str]] | None = None

    def read(self, tables: Iterable[PublishedTable], here: Lsn) -> None:
        """Remember the names; `here` lies after every rename that they show."""
        self._read = here, {t.relation_id: t.full_name for t in tables if t.kind == "p"}

    def require_described(self, watermark: Lsn, described: Callable[[int], str | None]) -> None:
        """
        Compare names, once the watermark is past them, with those that rows come under.

        Raises:
            TreeRenamed: only a new connection brings the new name.
        """
        if self._read is None or watermark < self._read[0]:
            return
        (_, names), self._read = self._read, None
        for relation_id, name in names.items():
            former = described(relation_id)
            if former is not None and former != name:
                raise TreeRenamed(former, name)
