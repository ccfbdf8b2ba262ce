"""Whether the source is still the one that the ledger names, and what is recorded about it."""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final

from pgstream_dagster.changelog.ledger import Ledger, PipelineIdentity
from pgstream_dagster.errors import SourceBehind, SourceError, SourceRestored
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source import mark as marks
from pgstream_dagster.source.connect import Session, connect
from pgstream_dagster.source.identity import SystemIdentity, check_same
from pgstream_dagster.source.mark import Mark

logger = logging.getLogger(__name__)

MARK: Final = "mark"
"""Kind of the ledger's fact that the source was marked, after a snapshot and before its copies."""

REFUSED: Final = "refused"
"""Kind of the ledger's fact that a server, which has this mark, lacks what the log holds."""

REMEMBERED: Final = {error.__name__: error for error in (SourceBehind, SourceRestored)}
"""What writing more WAL would hide. Another system or timeline shows at every check."""


def require_same(
    pipeline: Pipeline, ledger: Ledger, recorded: PipelineIdentity, watermark: Lsn
) -> SystemIdentity:
    """
    Raise unless the source's history has everything that the log holds; its identity now.

    That is everything up to `watermark`, and up to the newest copy: copies may be later. Only a
    `resnapshot` by name begins with another source.

    Raises:
        OtherSystem, TimelineForked, SourceBehind, SourceRestored
        StandbyBehind: waiting helps.
    """
    epoch = recorded.epoch
    held = [watermark, *(copy.consistent_point for copy in ledger.copies(epoch).values())]
    if (newest := _newest_mark(ledger, epoch)) is not None:
        held.append(newest.lsn)
    system = SystemIdentity(recorded.system_id, recorded.timeline, recorded.database)
    current = check_same(pipeline.dsn, system, max(held))
    with closing(connect(pipeline.dsn)) as session:
        if (refusal := _refusal(session, ledger, epoch)) is not None:
            raise refusal
        _require_marked(session, newest)
    return current


def adopt(
    pipeline: Pipeline, ledger: Ledger, recorded: PipelineIdentity, watermark: Lsn
) -> PipelineIdentity:
    """
    As `require_same`, before anything of the source lands: records a promotion, or a refusal.

    Without the new timeline in the ledger, the next check would compare where it forked with a
    watermark of its own, and find a fork.
    """
    try:
        timeline = require_same(pipeline, ledger, recorded, watermark).timeline
    except SourceBehind as error:
        refuse(pipeline, ledger, recorded.epoch, error)
        raise
    if timeline == recorded.timeline:
        return recorded
    logger.info("the source was promoted: timeline %d after %d", timeline, recorded.timeline)
    ledger.record_timeline(recorded.epoch, timeline)
    return replace(recorded, timeline=timeline)


def refuse(
    pipeline: Pipeline, ledger: Ledger, epoch: int, error: SourceBehind | SourceRestored
) -> None:
    """
    Remember that this server lacks what the log holds: `require_same` raises it again.

    The server is marked, so that it is the one that is refused, at whatever address; the right
    one is accepted where it answers. A server without a mark is checked again next time.
    """
    with suppress(SourceError), closing(connect(pipeline.dsn)) as session:
        if _refusal(session, ledger, epoch) is None and (mark := marks.make(session)) is not None:
            facts = {"error": type(error).__name__, "facts": error.facts, "mark": mark.facts}
            ledger.record(REFUSED, epoch, facts)


def mark(pipeline: Pipeline, ledger: Ledger, epoch: int, *, is_first: bool) -> None:
    """
    Mark the source after a snapshot was taken: what is copied from it is recognised by the mark.

    The same session checks the mark before it, unless nothing of the epoch is in the log
    (`is_first`): so a server that has the newest mark has them all.

    Raises:
        SourceRestored: the server was put back since it was checked.
    """
    with closing(connect(pipeline.dsn)) as session:
        if not is_first:
            _require_marked(session, _newest_mark(ledger, epoch))
        if (made := marks.make(session)) is not None:
            ledger.record(MARK, epoch, made.facts)


def _newest_mark(ledger: Ledger, epoch: int) -> Mark | None:
    """The one recorded last: one of a `setup` that broke off may be of another server."""
    recorded = [facts for in_epoch, facts in ledger.facts(MARK) if in_epoch == epoch]
    return Mark.from_facts(recorded[-1]) if recorded else None


def _require_marked(session: Session, mark: Mark | None) -> None:
    difference = None if mark is None else marks.difference(session, mark)
    if mark is not None and difference is not None:
        xid, outcome = difference
        landed = f"a copy behind transaction {xid} of ours ({mark.outcomes[xid]})"
        raise SourceRestored(landed, f"another one ({outcome})", mark.lsn)


def _refusal(session: Session, ledger: Ledger, epoch: int) -> SourceBehind | SourceRestored | None:
    """Why this server was refused, if it was."""
    for in_epoch, facts in ledger.facts(REFUSED):
        if in_epoch == epoch and marks.has(session, Mark.from_facts(facts["mark"])):
            return REMEMBERED[facts["error"]](**_with_positions(facts["facts"]))
    return None


def _with_positions(facts: dict[str, Any]) -> dict[str, Any]:
    """An error's facts as it takes them: the ledger keeps positions as text."""
    names = ("wal_lsn", "watermark")
    return {name: Lsn.parse(v) if name in names else v for name, v in facts.items()}
