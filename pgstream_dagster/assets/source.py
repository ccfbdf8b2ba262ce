"""The source's tables as the asset graph shows them: read here, not made here."""

from typing import Final

import dagster as dg

from pgstream_dagster.assets.names import Names

SOURCE: Final = "source"


def source_tables(names: Names) -> dg.AssetSpec:
    """The root of one pipeline's asset graph."""
    return names.spec(
        SOURCE,
        group_name=SOURCE,
        kinds={"postgres"},
        description="The published tables in Postgres. Rows of before the stream come into the log"
        " as copies, changes as they are committed.",
    )
