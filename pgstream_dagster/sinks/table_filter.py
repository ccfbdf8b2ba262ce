"""Which tables a sink receives: their rows and their schema, their schema alone, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from pgstream_dagster.patterns import TablePattern, matching


class TableFilter:
    """
    The patterns of a sink; `exclude` goes over everything else.

    A wildcard does not stand for the schema `pgstream`. A table under `schema_only` has no rows,
    unless `tables` names it and `schema_only` has only patterns that match it.
    """

    def __init__(
        self, tables: Sequence[str], exclude: Sequence[str], schema_only: Sequence[str]
    ) -> None:
        self._tables, self._exclude, self._schema_only = (
            [TablePattern.parse(written) for written in patterns]
            for patterns in (tables, exclude, schema_only)
        )

    def has_rows(self, namespace: str, name: str) -> bool:
        """Whether changes of rows of the table are received."""
        chosen = matching(self._tables, namespace, name)
        without_rows = matching(self._schema_only, namespace, name)
        if not chosen or matching(self._exclude, namespace, name):
            return False
        is_named = any(p.is_exact for p in chosen) and not any(p.is_exact for p in without_rows)
        return not without_rows or is_named

    def has_schema(self, namespace: str, name: str) -> bool:
        """Whether the table is one of the sink's, with rows or without."""
        patterns = [*self._tables, *self._schema_only]
        is_excluded = bool(matching(self._exclude, namespace, name))
        return bool(matching(patterns, namespace, name)) and not is_excluded
