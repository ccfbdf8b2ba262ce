"""The source's address from where this project keeps its secrets."""

import os

from pgstream_dagster.resources.postgres import PostgresSource


class VaultSource(PostgresSource):
    """A source whose address is looked up when a run starts."""

    entry: str

    def address(self) -> str:
        """The connection string of the entry."""
        return os.environ[f"VAULT_{self.entry.upper()}"]
