"""
The live indexer: keeps every index of the pipeline current, one process for all of them.

It follows the log as any reader does, so nothing it does or suffers holds the stream back. What a
live index cannot follow (its table was copied again, another table took the name, a column was
retyped) is answered by a re-index beside it, while it goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

from pgstream_dagster.backoff import waits
from pgstream_dagster.errors import GenerationHeld, NotCopied, PgstreamError, Retry
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.operations.index_reader import Reader, Stretch, of_relation
from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.operations.redrive import serve
from pgstream_dagster.operations.reindex import catch_up, follow, reindex, retire
from pgstream_dagster.operations.searching import Relation, Searching, opened
from pgstream_dagster.search import generations
from pgstream_dagster.search.control import Generation, State
from pgstream_dagster.search.indexer import Indexer

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""Between looks at the aliases: how long a promoted index may stand still."""

EPOCH_SECONDS: Final = 10.0
"""Between looks whether the pipeline began with another source."""

RELATION_SECONDS: Final = 5.0
"""Between looks for a table that took the name of another: a copy in the log is a look at once."""

READ_SECONDS: Final = 0.2

AGAIN_SECONDS: Final = 60.0
"""After a re-index failed: what it failed on seldom goes away at once."""

FIRST_WAIT_SECONDS: Final = 0.2
LONGEST_WAIT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Indexed:
    """How far the indexer is: documents written by it, and per live index what is delivered."""

    documents: int
    delivered: dict[str, Lsn] = field(default_factory=dict[str, Lsn])


Report: TypeAlias = Callable[[Indexed], None]


def index(
    pipeline: Pipeline,
    *,
    stop: threading.Event,
    report: Report = lambda indexed: None,
) -> Indexed:
    """
    Keep the indices of the pipeline file current until `stop` is set.

    An alias without an index gets one as soon as its table is copied. An outage of the search
    cluster is waited for; another indexer's lease, too.

    Raises:
        NotSetUp, MissingSetting: nothing can be indexed.
        AliasTaken, NotIndexable, SearchRefused, SearchFailed, IndexRefuses, IndexGone: see there.
    """
    pauses, total = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS), Indexed(0)
    while not stop.is_set():
        try:
            with opened(pipeline) as searching, _Live(searching, stop, total.documents) as live:
                while not stop.is_set() and live.is_current():
                    live.turn()
                    total = live.indexed()
                    report(total)
                    pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        except PgstreamError as error:
            if error.retry is not Retry.LATER:
                raise
            seconds = next(pauses)
            logger.warning("%s; trying again in %.1f s", error, seconds)
            stop.wait(seconds)
    return total


class _Live:
    """The live generations, from one opening of the cluster until it fails."""

    def __init__(self, searching: Searching, stop: threading.Event, documents: int) -> None:
        self._searching, self._stop, self._documents = searching, stop, documents
        self._reader = Reader(searching, searching.watermark())
        self._held: dict[str, Indexer] = {}
        self._builders: dict[str, _Builder] = {}
        self._relations: dict[str, Relation | None] = {}
        self._looked, self._asked = 0.0, time.monotonic()
        self._related = self._asked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for builder in self._builders.values():
            builder.end()
        for indexer in self._held.values():
            with suppress(PgstreamError):  # what is not saved is applied once more
                indexer.save()
            indexer.lease.leave()

    def is_current(self) -> bool:
        """Whether the log's newest epoch is still the one that is followed."""
        if time.monotonic() - self._asked < EPOCH_SECONDS:
            return True
        self._asked = time.monotonic()
        searching = self._searching
        known = searching.ledger.identity(searching.pipeline.name)
        return known is None or known.epoch == searching.epoch

    def turn(self) -> None:
        """Look after the aliases when it is time, and apply what the log has."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            for alias in self._searching.pipeline.config.search:
                self._look_at(alias)
            self._looked = time.monotonic()
        stretch = self._reader.read(self._relation_ids(), READ_SECONDS)
        if stretch is not None:
            self._apply(stretch)

    def indexed(self) -> Indexed:
        """How far it is now."""
        held = self._held.values()
        delivered = {indexer.lease.generation.index: indexer.delivered for indexer in held}
        return Indexed(self._documents, delivered)

    def _relation_ids(self) -> list[int]:
        return [indexer.lease.generation.relation_id for indexer in self._held.values()]

    def _apply(self, stretch: Stretch) -> None:
        for indexer in self._held.values():
            if stretch.watermark > indexer.delivered:
                changes = of_relation(stretch.changes, indexer.lease.generation.relation_id)
                self._documents += indexer.apply(changes, stretch.watermark)
        if stretch.has_copy:
            self._relations.clear()

    # --- aliases

    def _look_at(self, alias: str) -> None:
        """Hold the generation that the alias is on, and see whether another one is due."""
        searching = self._searching
        on = generations.live(searching.cluster, alias)
        held = self._held.get(alias)
        is_on = held is not None and on is not None and on.index == held.lease.generation.index
        if searching.control(alias).promoting():
            if held is not None:
                held.save()
                held.lease.release()
                del self._held[alias]
            return
        if held is not None and not is_on:
            held.save()
            held.lease.release(state=State.KEPT)
            del self._held[alias]
            retire(searching, alias, searching.config(alias).keep)
        if on is not None and not is_on:
            self._hold(alias, on.index)
        if alias in self._held:
            serve(searching, self._held[alias])
        self._build_if_due(alias)

    def _hold(self, alias: str, index: str) -> None:
        control = self._searching.control(alias)
        known = control.of(index)
        if known is None:  # the records were lost; a re-index makes them anew
            return
        try:
            lease = control.hold(known.number)
        except GenerationHeld as held:
            logger.info("%s", held)
            return
        if lease.generation.state is not State.LIVE:
            lease.save(state=State.LIVE)
        indexer = self._searching.indexer(alias, lease)
        reader = Reader(self._searching, indexer.delivered)
        catch_up(self._searching, indexer, reader, self._stop)
        while reader.watermark < self._reader.watermark:  # where the others are
            follow(indexer, reader, READ_SECONDS)
        self._held[alias] = indexer
        logger.info("%s is live", index)

    def _build_if_due(self, alias: str) -> None:
        builder = self._builders.get(alias)
        if builder is not None and not builder.is_over:
            return
        held = self._held.get(alias)
        reason = self._due(alias, None if held is None else held.lease.generation)
        if reason is None:
            return
        if self._searching.config(alias).reindex == "manual" and held is not None:
            if held.lease.generation.outdated != reason:
                held.lease.save(outdated=reason)
            return
        logger.info("re-indexing %s: %s", alias, reason)
        self._builders[alias] = _Builder(self._searching.pipeline, alias)

    def _due(self, alias: str, on: Generation | None) -> str | None:
        """Why an alias needs a new generation; `None`: it does not."""
        relation = self._relation(alias)
        if relation is None:
            return None  # the stream will copy it
        if on is None:
            return self._missing(alias)
        if (on.epoch, on.relation_id) != (self._searching.epoch, relation.relation_id):
            return "another table has its name"
        if on.copied_at < relation.copied_at:
            return "its table was copied again"
        return None if on.is_closed else on.outdated

    def _relation(self, alias: str) -> Relation | None:
        """
        The relation that an alias is of; asked anew after a copy, and every few seconds.

        What answers are tables of the lake, read whole: too much for every look.
        """
        if time.monotonic() - self._related >= RELATION_SECONDS:
            self._relations.clear()
            self._related = time.monotonic()
        if alias not in self._relations:
            try:
                self._relations[alias] = self._searching.relation(alias)
            except NotCopied:
                self._relations[alias] = None
        return self._relations[alias]

    def _missing(self, alias: str) -> str | None:
        """Why an alias that nobody here holds needs a new generation."""
        there = generations.live(self._searching.cluster, alias)
        if there is None:
            return "it has no index"
        known = self._searching.control(alias).of(there.index)
        return "the record of its index was lost" if known is None else None


class _Builder:
    """A re-index in a thread; after a failure it is over only when it may be tried again."""

    def __init__(self, pipeline: Pipeline, alias: str) -> None:
        self._stop, self._again = threading.Event(), time.monotonic() + AGAIN_SECONDS
        self._pipeline, self._alias, self._failed = pipeline, alias, False
        self._thread = threading.Thread(target=self._run, name=f"reindex-{alias}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether another one may begin."""
        waits = self._failed and time.monotonic() < self._again
        return not self._thread.is_alive() and not waits

    def end(self) -> None:
        """Stop it, and wait until it has let go."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            reindex(self._pipeline, self._alias, stop=self._stop)
        except PgstreamError as error:
            self._failed = True
            logger.warning("re-index of %s failed, its alias stays: %s", self._alias, error)
        except Exception:
            self._failed = True
            logger.exception("re-index of %s failed, its alias stays", self._alias)
