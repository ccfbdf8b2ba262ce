"""
Redrive: sends refused documents again, with the current state of their rows.

It never sends the stored document, but the fold of the key at the position of the index, and only
the holder of the lease writes it. So the command leaves a request in the control index for the live
indexer; if none runs, it takes the lease itself.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.errors import GenerationHeld, NothingKept, SearchUnreachable
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
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
        SearchUnreachable: the indexer that holds the index did not answer in time.
    """
    with opened(pipeline, alias) as session:
        generation = session.live(alias)
        if generation is None:
            raise NothingKept(alias, "it has no index yet")
        try:
            lease = session.control(alias).hold(generation.number)
        except GenerationHeld:
            return _requested(session, alias)
        try:
            with closing(session.indexer(alias, lease)) as indexer:
                catch_up(session, indexer, threading.Event())
                return _send(session, indexer)
        finally:
            lease.leave()


def serve(session: SearchSession, indexer: Indexer) -> None:
    """Serve a pending request, if there is one; the holder of the lease calls this regularly."""
    document = _document(session, indexer.lease.generation.alias)
    request = session.cluster.get(CONTROL, document)
    if request is None or "sent" in request["_source"]:
        return
    done = _send(session, indexer)
    answer = {**request["_source"], "index": done.index, "sent": done.sent, "refused": done.refused}
    session.cluster.put(CONTROL, document, answer, over=request)


def _send(session: SearchSession, indexer: Indexer) -> Redriven:
    generation = indexer.lease.generation
    keys = [letter.key for letter in session.letters.open(generation.index).values()]
    refused = indexer.rewrite(keys) if keys else 0
    return Redriven(generation.alias, generation.index, len(keys), refused)


def _requested(session: SearchSession, alias: str) -> Redriven:
    """Leave a request, and wait for its answer."""
    cluster, document = session.cluster, _document(session, alias)
    request: Json = {"asked_at": time.time()}
    former = cluster.get(CONTROL, document)
    with suppress(Conflict):  # another process has just requested the same
        cluster.put(CONTROL, document, request, over=former)
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        stored = cluster.get(CONTROL, document)
        if stored is not None and "sent" in stored["_source"]:
            answer = stored["_source"]
            return Redriven(alias, answer["index"], answer["sent"], answer["refused"])
        time.sleep(POLL_SECONDS)
    reason = f"the indexer of {alias!r} has not sent its dead letters in {WAIT_SECONDS:.0f} s"
    raise SearchUnreachable(session.settings.url, reason)


def _document(session: SearchSession, alias: str) -> str:
    return f"{session.pipeline.name}/{alias}/redrive"
