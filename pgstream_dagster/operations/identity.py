"""Whether the source is still the one that the ledger names."""

from __future__ import annotations

from pgstream_dagster.changelog.ledger import PipelineIdentity
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.source.identity import SystemIdentity, check_same


def require_same(pipeline: Pipeline, known: PipelineIdentity, watermark: Lsn) -> None:
    """
    Raise unless the source's history holds everything up to `watermark`.

    Only a `resnapshot` by name begins with another source.

    Raises:
        OtherSystem, TimelineForked, SourceBehind
    """
    recorded = SystemIdentity(known.system_id, known.timeline, known.database)
    check_same(pipeline.dsn, recorded, watermark)
