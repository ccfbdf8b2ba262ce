"""A table as the catalog lists it for a publication, for tests of what the capture asks of it."""

from __future__ import annotations

from typing import Final

from pgstream_dagster.schema.versions import Versions
from pgstream_dagster.source.publication import PublishedTable

OID: Final = 16_384

TABLE: Final = PublishedTable(
    relation_id=OID,
    namespace="public",
    name="t",
    kind="r",
    columns=("id", "a"),
    attnums=(1, 3),
    newest_attnum=4,  # 2 was dropped, 4 is not published
    row_filter=None,
    members={OID: 30_000},
    estimated_rows=0,
    pages=0,
    versions=Versions(listing=(20_000, 700), edges={OID + 1: 701}, types={"label 9": 702}),
)
