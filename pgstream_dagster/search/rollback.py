"""Rollback: moves the alias back to the newest kept generation, once that has caught up."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass

from pgstream_dagster.errors import NothingKept
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import generations
from pgstream_dagster.search.control import Generation
from pgstream_dagster.search.reindex import catch_up, promote
from pgstream_dagster.search.session import SearchSession, opened


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The index that the alias is on again, and the one it was on."""

    alias: str
    index: str
    replaced: str
    delivered: Lsn


@named
def rollback(pipeline: Pipeline, alias: str, stop: threading.Event | None = None) -> RolledBack:
    """
    Bring the newest kept generation up to date and move the alias to it.

    The alias stays there until a person requests a re-index: a reason for which the live indexer
    would start one by itself is only shown in the status.

    Raises:
        NoSuchAlias, NotSetUp, MissingSetting
        NothingKept: there is none, or it cannot be brought up to date.
        GenerationHeld, LeaseLost, PromotionOvertaken: another process interferes.
    """
    with opened(pipeline, alias) as session:
        live = generations.live(session.cluster, alias)
        control = session.control(alias)
        kept = [] if live is None else control.former(live.index)
        if live is None or not kept:
            raise NothingKept(alias, "no former index was kept")
        _require_current(session, kept[-1])
        lease = control.hold(kept[-1].number)
        try:
            with closing(session.indexer(alias, lease)) as indexer:
                catch_up(session, indexer, stop or threading.Event())
                lease.save(is_pinned=True)
                promote(session, indexer, live)
        except BaseException:
            lease.leave()
            raise
        return RolledBack(alias, lease.generation.index, live.index, indexer.delivered)


def _require_current(session: SearchSession, generation: Generation) -> None:
    relation = session.relation(generation.alias)
    copy = (generation.epoch, generation.relation_id, generation.copied_at)
    is_current = copy == (session.epoch, relation.relation_id, relation.copied_at)
    if not (is_current and session.has_log_of(generation)) or generation.is_closed:
        reason = f"the table of {generation.index} was copied again, or is another one"
        raise NothingKept(generation.alias, reason)
