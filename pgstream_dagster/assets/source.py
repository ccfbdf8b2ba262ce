"""The source as the asset graph shows it: read here, not made here."""

from typing import Final

import dagster as dg

from pgstream_dagster.assets.names import Names

SOURCE: Final = "source"


def source_topics(names: Names) -> dg.AssetSpec:
    """The root of the asset graph of a pipeline that reads topics."""
    return names.spec(
        SOURCE,
        group_name=SOURCE,
        kinds={"kafka"},
        description="The topics of the Kafka sink of another pipeline. Its copied rows come into"
        " the log as changes do.",
    )


def source_tables(names: Names) -> dg.AssetSpec:
    """The root of the asset graph of a pipeline that reads Postgres."""
    return names.spec(
        SOURCE,
        group_name=SOURCE,
        kinds={"postgres"},
        description="The published tables in Postgres. Rows of before the stream come into the log"
        " as copies, changes as they are committed.",
    )
