"""The source's tables as the graph shows them: read, and not made here."""

from typing import Final

import dagster as dg

from pgstream_dagster.assets.names import Names

SOURCE: Final = "source"


def source_tables(names: Names) -> dg.AssetSpec:
    """Where the graph of one pipeline begins."""
    return names.spec(
        SOURCE,
        group_name=SOURCE,
        kinds={"postgres"},
        description="The published tables in Postgres. Rows of before the stream come into the log"
        " as copies, changes as they are committed.",
    )
