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
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

from pgstream_dagster import state_folder
from pgstream_dagster.backoff import waits
from pgstream_dagster.delta import faults
from pgstream_dagster.errors import GenerationHeld, IndexGone, LeaseLost, PgstreamError, Retry
from pgstream_dagster.heartbeat import HeartbeatWriter
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.log_reader import ChangeBatch, LogReader, of_relation
from pgstream_dagster.search import generations
from pgstream_dagster.search.builds import Build, here
from pgstream_dagster.search.control import Generation, State
from pgstream_dagster.search.indexer import Indexer
from pgstream_dagster.search.redrive import serve
from pgstream_dagster.search.reindex import follow, retire
from pgstream_dagster.search.session import Relation, SearchSession, opened

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""Between looks at the aliases: how long a promoted index may stand still."""

LOOKS_AT_ONCE: Final = 4
"""Aliases looked at between two batches: three requests each, while changes wait."""

BUILDS_AT_ONCE: Final = 2
"""Re-indexes that this process runs at a time: they share one Spark, and the cluster's patience."""

EPOCH_SECONDS: Final = 10.0
"""Between looks whether the pipeline began with another source."""

RELATION_SECONDS: Final = 5.0
"""Between looks for a table that took the name of another: a copy in the log is a look at once."""

READ_SECONDS: Final = 0.2

AGAIN_SECONDS: Final = 60.0
"""After an index or its re-index failed: what it failed on seldom goes away at once."""

FIRST_WAIT_SECONDS: Final = 0.2
LONGEST_WAIT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Indexed:
    """
    How far the indexer is: documents written by it, and per live index what is delivered.

    `failed`: by alias, why it is not followed now.
    """

    documents: int
    delivered: dict[str, Lsn] = field(default_factory=dict[str, Lsn])
    failed: dict[str, str] = field(default_factory=dict[str, str])


Report: TypeAlias = Callable[[Indexed], None]


def index(
    pipeline: Pipeline,
    *,
    stop: threading.Event,
    report: Report = lambda indexed: None,
    build: Build = here,
) -> Indexed:
    """
    Keep the indices of the pipeline file current until `stop` is set.

    An alias without an index gets one as soon as its table is copied, by `build`. An outage of the
    search cluster is waited for; another indexer's lease, too. An index that fails by itself is
    left where it is and tried again every minute, while the others go on.

    Raises:
        StateTaken: the state folder belongs to another pipeline of this name.
        NotSetUp, MissingSetting: nothing can be indexed.
        AliasTaken, SearchRefused, SearchFailed, IndexRefuses: no alias is left that could be
            followed; the last one's error.
    """
    state_folder.claim(pipeline)
    pauses, total = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS), Indexed(0)
    heartbeat = HeartbeatWriter(pipeline.indexer_heartbeat_file)
    while not stop.is_set():
        try:
            with (
                faults.named(pipeline.lake.change_log),
                opened(pipeline) as session,
                _Live(session, total.documents, build) as live,
            ):
                while not stop.is_set() and live.is_current():
                    live.turn()
                    total = live.indexed()
                    report(total)
                    if heartbeat.is_due:
                        heartbeat.say("indexing", documents=total.documents)
                    pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        except PgstreamError as error:
            if error.retry is not Retry.LATER:
                raise
            seconds, lag = next(pauses), _lag_bytes(pipeline, total)
            logger.warning(
                "%s; trying again in %.1f s%s",
                error,
                seconds,
                "" if lag is None else f"; {lag:,} bytes of WAL behind the log",
            )
            heartbeat.say("waiting", str(error), documents=total.documents, lag_bytes=lag)
            stop.wait(seconds)
    return total


def _lag_bytes(pipeline: Pipeline, indexed: Indexed) -> int | None:
    """WAL from the index that is furthest behind to the log's end; `None`: it is not known."""
    if not indexed.delivered:
        return None
    try:
        with faults.named(pipeline.lake.change_log), pipeline.open() as opened:
            watermark = opened.watermark()
    except PgstreamError:  # what is waited for may be the lake
        return None
    return None if watermark is None else max(0, watermark - min(indexed.delivered.values()))


class _Live:
    """The live generations, from one opening of the cluster until it fails."""

    def __init__(self, session: SearchSession, documents: int, build: Build) -> None:
        self._session, self._documents, self._build = session, documents, build
        self._reader = LogReader(session.opened, session.watermark())
        self._held: dict[str, Indexer] = {}
        self._behind: dict[
            str, tuple[Indexer, LogReader]
        ] = {}  # held too, not where the others are
        self._builders: dict[str, _Builder] = {}
        self._relations: dict[str, Relation] | None = None
        self._failed: dict[str, _Failed] = {}
        self._to_look_at = list[str]()
        self._looked, self._asked = 0.0, time.monotonic()
        self._related = self._asked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for builder in self._builders.values():
            builder.stop()
        for builder in self._builders.values():
            builder.join()
        for indexer in self._indexers().values():
            with suppress(PgstreamError):  # what is not saved is applied once more
                indexer.save()
            indexer.lease.leave()

    def is_current(self) -> bool:
        """Whether the log's newest epoch is still the one that is followed."""
        if time.monotonic() - self._asked < EPOCH_SECONDS:
            return True
        self._asked = time.monotonic()
        session = self._session
        known = session.opened.ledger.identity(session.pipeline.name)
        return known is None or known.epoch == session.epoch

    def turn(self) -> None:
        """Look after the aliases when it is time, and apply what the log has."""
        if not self._to_look_at and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._to_look_at = list(self._session.pipeline.config.search)
            self._looked = time.monotonic()
        now, self._to_look_at = self._to_look_at[:LOOKS_AT_ONCE], self._to_look_at[LOOKS_AT_ONCE:]
        for alias in now:
            with self._apart(alias):
                self._look_at(alias)
        for alias, (indexer, reader) in list(self._behind.items()):
            with self._apart(alias):
                self._catch_up(alias, indexer, reader)
        batch = self._reader.read(self._relation_ids(), 0.0 if self._behind else READ_SECONDS)
        if batch is not None:
            self._apply(batch)
        for alias, indexer in list(self._indexers().items()):
            with self._apart(alias):
                indexer.lease.keep()

    def indexed(self) -> Indexed:
        """How far it is now."""
        held = self._indexers().values()
        delivered = {indexer.lease.generation.index: indexer.delivered for indexer in held}
        failed = {alias: str(each.error) for alias, each in self._failed.items()}
        return Indexed(self._documents, delivered, failed)

    def _relation_ids(self) -> list[int]:
        return [indexer.lease.generation.relation_id for indexer in self._held.values()]

    def _apply(self, batch: ChangeBatch) -> None:
        for alias, indexer in list(self._held.items()):
            if batch.watermark > indexer.delivered:
                changes = of_relation(batch.changes, indexer.lease.generation.relation_id)
                with self._apart(alias):
                    self._documents += indexer.apply(changes, batch.watermark)
        if batch.has_copy:
            self._relations = None

    def _catch_up(self, alias: str, indexer: Indexer, reader: LogReader) -> None:
        """One batch for a generation that is behind, until it is where the others are."""
        follow(indexer, reader, 0.0)
        if reader.watermark >= self._reader.watermark:
            del self._behind[alias]
            self._held[alias] = indexer
            logger.info("%s is live", indexer.lease.generation.index)

    def _indexers(self) -> dict[str, Indexer]:
        return self._held | {alias: indexer for alias, (indexer, _) in self._behind.items()}

    def _let_go(self, alias: str) -> Indexer | None:
        behind = self._behind.pop(alias, None)
        return self._held.pop(alias, None) if behind is None else behind[0]

    @contextmanager
    def _apart(self, alias: str) -> Generator[None]:
        """What only a person can fix at one index holds up none of the others."""
        try:
            yield
        except LeaseLost as lost:
            logger.info("%s", lost)
            self._let_go(alias)  # the next look tells whose it is
        except PgstreamError as error:
            if error.retry is Retry.LATER:
                raise
            held = self._let_go(alias)
            if held is not None:
                held.lease.leave()
            self._failed[alias] = _Failed(error, time.monotonic() + AGAIN_SECONDS)
            all_failed = self._failed.keys() >= self._session.pipeline.config.search.keys()
            if all_failed and not isinstance(error, IndexGone):  # one that is gone is built again
                raise
            logger.error("index %s is not followed for now: %s", alias, error)  # noqa: TRY400

    # --- aliases

    def _look_at(self, alias: str) -> None:
        """Hold the generation that the alias is on, and see whether another one is due."""
        session = self._session
        if alias in self._failed:
            if time.monotonic() < self._failed[alias].again:
                return
            del self._failed[alias]
        on = generations.live(session.cluster, alias)
        held = self._indexers().get(alias)
        is_on = held is not None and on is not None and on.index == held.lease.generation.index
        if session.control(alias).promoting():
            if held is not None:
                held.save()
                held.lease.release()
                self._let_go(alias)
            return
        if held is not None and not is_on:
            held.save()
            held.lease.release(state=State.KEPT)
            self._let_go(alias)
            retire(session, alias, session.config(alias).keep)
        if on is not None and not is_on:
            self._hold(alias, on.index)
        if alias in self._held:
            serve(session, self._held[alias])
        self._build_if_due(alias)

    def _hold(self, alias: str, index: str) -> None:
        control = self._session.control(alias)
        known = control.of(index)
        if known is None:  # the records were lost; a re-index makes them again
            return
        try:
            lease = control.hold(known.number)
        except GenerationHeld as held:
            logger.info("%s", held)
            return
        if lease.generation.state is not State.LIVE:
            lease.save(state=State.LIVE)
        indexer = self._session.indexer(alias, lease)
        self._behind[alias] = indexer, LogReader(self._session.opened, indexer.delivered)

    def _build_if_due(self, alias: str) -> None:
        builder = self._builders.get(alias)
        building = sum(each.is_running for each in self._builders.values())
        if building >= BUILDS_AT_ONCE or (builder is not None and not builder.is_over):
            return
        held = self._indexers().get(alias)
        reason = self._due(alias, None if held is None else held.lease.generation)
        if reason is None:
            return
        if held is not None and self._is_manual(held.lease.generation):
            if held.lease.generation.outdated != reason:
                held.lease.save(outdated=reason)
            return
        logger.info("re-indexing %s: %s", alias, reason)
        self._builders[alias] = _Builder(self._build, self._session.pipeline, alias)

    def _is_manual(self, generation: Generation) -> bool:
        is_manual = self._session.config(generation.alias).reindex == "manual"
        return is_manual or generation.is_pinned

    def _due(self, alias: str, on: Generation | None) -> str | None:
        """Why an alias needs a new generation; `None`: it does not."""
        relation = self._relations_now().get(alias)
        if relation is None:
            return None  # the stream will copy it
        if on is None:
            return self._missing(alias)
        if (on.epoch, on.relation_id) != (self._session.epoch, relation.relation_id):
            return "another table has its name"
        if on.copied_at < relation.copied_at:
            return "its table was copied again"
        if on.asked and on.asked != self._session.config(alias).documents():
            return "pgstream.yaml says something else of it"
        return None if on.is_closed else on.outdated

    def _relations_now(self) -> dict[str, Relation]:
        """
        The relation that each alias is of; asked again after a copy, and every few seconds.

        What answers are tables of the lake, read whole: too much for every look.
        """
        if self._relations is None or time.monotonic() - self._related >= RELATION_SECONDS:
            self._relations, self._related = self._session.relations(), time.monotonic()
        return self._relations

    def _missing(self, alias: str) -> str | None:
        """Why an alias that is not held here needs a new generation."""
        there = generations.live(self._session.cluster, alias)
        if there is None:
            return "it has no index"
        known = self._session.control(alias).of(there.index)
        return "the record of its index was lost" if known is None else None


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why an alias is not followed, and from when on it is tried again, by the monotonic clock."""

    error: PgstreamError
    again: float


class _Builder:
    """A re-index in a thread; after a failure it is over only when it may be tried again."""

    def __init__(self, build: Build, pipeline: Pipeline, alias: str) -> None:
        self._stop, self._again = threading.Event(), time.monotonic() + AGAIN_SECONDS
        self._is_done = False
        self._thread = threading.Thread(
            target=self._run, args=(build, pipeline, alias), name=f"reindex-{alias}", daemon=True
        )
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether another one may begin."""
        return not self.is_running and (self._is_done or time.monotonic() >= self._again)

    @property
    def is_running(self) -> bool:
        """Whether it is at work."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to let go."""
        self._stop.set()

    def join(self) -> None:
        """Wait until it has."""
        self._thread.join()

    def _run(self, build: Build, pipeline: Pipeline, alias: str) -> None:
        self._is_done = build(pipeline, alias, self._stop)
