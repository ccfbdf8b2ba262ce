"""
Redrive: documents that were refused, sent again as their rows are now.

Never the stored document: what is written is the fold of the key at the position of the index, by
the one who holds its lease. So a request is left in the control index for the live indexer; where
none runs, the command takes the lease itself.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.errors import GenerationHeld, NothingKept, SearchUnreachable
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.log_reader import LogReader
from pgstream_dagster.search.answers import Conflict, Json
from pgstream_dagster.search.control import CONTROL
from pgstream_dagster.search.indexer import Indexer
from pgstream_dagster.search.reindex import catch_up
from pgstream_dagster.search.session import SearchSession, opened

WAIT_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Redriven:
    """How many documents were sent again, and how many of them were refused again."""

    alias: str
    index: str
    sent: int
    refused: int


@named
def redrive(pipeline: Pipeline, alias: str) -> Redriven:
    """
    Send the dead letters of an alias's live index again.

    Raises:
        NoSuchAlias, NotSetUp, MissingSetting
        NothingKept: the alias has no index yet.
        SearchUnreachable: the indexer that holds the index did not do it in time.
    """
    with opened(pipeline, alias) as session:
        known = session.live(alias)
        if known is None:
            raise NothingKept(alias, "it has no index yet")
        try:
            lease = session.control(alias).hold(known.number)
        except GenerationHeld:
            return _asked(session, alias)
        try:
            indexer = session.indexer(alias, lease)
            reader = LogReader(session.opened, indexer.delivered)
            catch_up(session, indexer, reader, threading.Event())
            return _sent(session, indexer)
        finally:
            lease.leave()


def serve(session: SearchSession, indexer: Indexer) -> None:
    """Do what was asked for, if anything was; by the holder of the lease, now and then."""
    document = _document(session, indexer.lease.generation.alias)
    asked = session.cluster.get(CONTROL, document)
    if asked is None or "sent" in asked["_source"]:
        return
    done = _sent(session, indexer)
    answer = {**asked["_source"], "index": done.index, "sent": done.sent, "refused": done.refused}
    session.cluster.put(CONTROL, document, answer, over=asked)


def _sent(session: SearchSession, indexer: Indexer) -> Redriven:
    generation = indexer.lease.generation
    keys = [letter.key for letter in session.letters.open(generation.index).values()]
    refused = indexer.rewrite(keys) if keys else []
    return Redriven(generation.alias, generation.index, len(keys), len(refused))


def _asked(session: SearchSession, alias: str) -> Redriven:
    """Leave a request, and wait for its answer."""
    cluster, document = session.cluster, _document(session, alias)
    request: Json = {"asked_at": time.time()}
    known = cluster.get(CONTROL, document)
    with suppress(Conflict):  # somebody else has asked for the same
        cluster.put(CONTROL, document, request, over=known)
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = cluster.get(CONTROL, document)
        if found is not None and "sent" in found["_source"]:
            said = found["_source"]
            return Redriven(alias, said["index"], said["sent"], said["refused"])
        time.sleep(POLL_SECONDS)
    reason = f"the indexer of {alias!r} has not sent its dead letters in {WAIT_SECONDS:.0f} s"
    raise SearchUnreachable(session.settings.url, reason)


def _document(session: SearchSession, alias: str) -> str:
    return f"{session.pipeline.name}/{alias}/redrive"
