"""Whether the source is still the one that the ledger names, and what is recorded of that."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from pgstream_dagster.changelog.ledger import Ledger, PipelineIdentity
from pgstream_dagster.errors import SourceBehind, SourceRestored
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.source.connect import server
from pgstream_dagster.source.identity import SystemIdentity, check_same

logger = logging.getLogger(__name__)

REFUSED: Final = "refused"
"""Kind of the ledger's fact that a server lacks what the log holds. It holds for its epoch."""

REMEMBERED: Final = {error.__name__: error for error in (SourceBehind, SourceRestored)}
"""What writing more WAL would hide. Another system or timeline shows at every look."""


def require_same(
    pipeline: Pipeline, ledger: Ledger, known: PipelineIdentity, watermark: Lsn
) -> SystemIdentity:
    """
    Raise unless the source's history has everything that the log holds; its identity now.

    That is everything up to `watermark`, and up to the newest copy: copies may be later. Only a
    `resnapshot` by name begins with another source.

    Raises:
        OtherSystem, TimelineForked, SourceBehind, SourceRestored
        StandbyBehind: waiting helps.
    """
    where = server(pipeline.dsn)
    for epoch, facts in ledger.facts(REFUSED):
        if epoch == known.epoch and facts["server"] == where:
            raise REMEMBERED[facts["error"]](**facts["facts"])
    copies = ledger.copies(known.epoch).values()
    held = max([watermark, *(copy.consistent_point for copy in copies)])
    recorded = SystemIdentity(known.system_id, known.timeline, known.database)
    return check_same(pipeline.dsn, recorded, held)


def adopt(
    pipeline: Pipeline, ledger: Ledger, known: PipelineIdentity, watermark: Lsn
) -> PipelineIdentity:
    """
    As `require_same`, before anything of the source lands: records a promotion, or a refusal.

    Without the new timeline in the ledger, the next look would compare where it forked with a
    watermark of its own, and find a fork.
    """
    try:
        found = require_same(pipeline, ledger, known, watermark)
    except SourceBehind as error:
        refuse(pipeline, ledger, known.epoch, error)
        raise
    if found.timeline == known.timeline:
        return known
    logger.info("the source was promoted: timeline %d after %d", found.timeline, known.timeline)
    ledger.record_timeline(known.epoch, found.timeline)
    return replace(known, timeline=found.timeline)


def refuse(
    pipeline: Pipeline, ledger: Ledger, epoch: int, error: SourceBehind | SourceRestored
) -> None:
    """
    Remember that this server lacks what the log holds: `require_same` raises it again.

    Under the same address only: one that was given by mistake can be corrected.
    """
    where, name = server(pipeline.dsn), type(error).__name__
    known = [(of, facts["server"]) for of, facts in ledger.facts(REFUSED)]
    if (epoch, where) not in known:
        ledger.record(REFUSED, epoch, {"server": where, "error": name, "facts": error.facts})
