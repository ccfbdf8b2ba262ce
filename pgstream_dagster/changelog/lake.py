"""The folder of a pipeline and the URIs of its tables. Opens none of them, needs no JVM."""

from __future__ import annotations

from dataclasses import dataclass

from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import LOG_FOLDER


@dataclass(frozen=True, slots=True)
class Lake:
    """A folder, or the URI of one on an object store, that holds the tables of one pipeline."""

    root: str

    @property
    def uri(self) -> str:
        """URI of the folder."""
        return uri.absolute(self.root)

    @property
    def is_made(self) -> bool:
        """Whether `setup` has begun here; needs no JVM. Always true on an object store."""
        ledger = uri.local(self.ledger)
        return ledger is None or (ledger / LOG_FOLDER).is_dir()

    @property
    def change_log(self) -> str:
        """URI of the log of changes."""
        return self._table("change_log")

    @property
    def schema_log(self) -> str:
        """URI of the log of schema versions."""
        return self._table("schema_log")

    @property
    def ledger(self) -> str:
        """URI of the ledger of lifecycle facts."""
        return self._table("ledger")

    @property
    def dead_letters(self) -> str:
        """URI of the documents that a search cluster refused."""
        return self._table("dead_letters")

    @property
    def sinks(self) -> str:
        """URI of the progress of sinks."""
        return self._table("sinks")

    @property
    def sink_letters(self) -> str:
        """URI of the changes that sinks refused or hold back."""
        return self._table("sink_letters")

    @property
    def sorted_rows(self) -> str:
        """URI of rows of the log that a reader had sorted; its own, and removed after use."""
        return self._table("sorted_rows")

    @property
    def daily_changes(self) -> str:
        """URI of the changes by day, which `replay` makes from the log."""
        return self._table("daily_changes")

    @property
    def typed_tables(self) -> str:
        """URI of the progress of typed tables."""
        return self._table("typed_tables")

    @property
    def typed_folder(self) -> str:
        """URI of the folder of typed tables."""
        return self._table("tables")

    def typed_table(self, name: str) -> str:
        """URI of a typed table."""
        return uri.child(self.typed_folder, name)

    def _table(self, name: str) -> str:
        return uri.child(self.uri, name)
