"""Rollback: the alias back on the newest kept generation, once that has caught up."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from pgstream_dagster.errors import NothingKept
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.log_reader import LogReader
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

    It stays there until somebody asks for a re-index: what the live indexer would answer with one
    by itself is said in the status alone.

    Raises:
        NoSuchAlias, NotSetUp, MissingSetting
        NothingKept: there is none, or it cannot be brought up to date.
        GenerationHeld, LeaseLost, PromotionOvertaken: another process is at it.
    """
    with opened(pipeline, alias) as session:
        on = generations.live(session.cluster, alias)
        control = session.control(alias)
        kept = [] if on is None else control.former(on.index)
        if on is None or not kept:
            raise NothingKept(alias, "no former index was kept")
        _require_current(session, kept[-1])
        lease = control.hold(kept[-1].number)
        try:
            indexer = session.indexer(alias, lease)
            reader = LogReader(session.opened, indexer.delivered)
            catch_up(session, indexer, reader, stop or threading.Event())
            lease.save(is_pinned=True)
            promote(session, indexer, reader, on)
        except BaseException:
            lease.leave()
            raise
        return RolledBack(alias, lease.generation.index, on.index, indexer.delivered)


def _require_current(session: SearchSession, generation: Generation) -> None:
    relation = session.relation(generation.alias)
    of = (generation.epoch, generation.relation_id, generation.copied_at)
    if of != (session.epoch, relation.relation_id, relation.copied_at) or generation.is_closed:
        reason = f"the table of {generation.index} was copied again, or is another one"
        raise NothingKept(generation.alias, reason)
