"""
The live indexer: keeps all indices of the pipeline current, in one process.

It follows the log as any reader, so it never holds the stream back. What a live index cannot follow
(its table was copied again, another table took the name, a column was retyped) starts a re-index,
while the live index continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self, TypeAlias

from pgstream_dagster import state_folder
from pgstream_dagster.backoff import waits
from pgstream_dagster.delta import faults
from pgstream_dagster.errors import GenerationHeld, IndexGone, LeaseLost, PgstreamError, Retry
from pgstream_dagster.heartbeat import HeartbeatWriter
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.log_reader import LogBatch, LogReader, of_relations
from pgstream_dagster.search import generations
from pgstream_dagster.search.builds import Build, build_in_process
from pgstream_dagster.search.control import Generation, State
from pgstream_dagster.search.indexer import OTHER_LOG, OTHER_RULES, Indexer
from pgstream_dagster.search.redrive import serve
from pgstream_dagster.search.reindex import follow, retire
from pgstream_dagster.search.schema_index import SchemaIndex
from pgstream_dagster.search.session import Relation, SearchSession, opened

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.5
"""Between polls of the aliases: how long a promoted index may receive no changes."""

POLLS_AT_ONCE: Final = 4
"""Aliases polled between two batches: three requests each, while changes wait."""

BUILDS_AT_ONCE: Final = 2
"""Re-indexes that this process runs at a time: they share one Spark, and the cluster's capacity."""

EPOCH_SECONDS: Final = 10.0
"""Between checks whether the pipeline began with another source."""

RELATION_SECONDS: Final = 5.0
"""Between checks for a table that took another's name; a copy in the log is checked immediately."""

READ_SECONDS: Final = 0.2

AGAIN_SECONDS: Final = 60.0
"""Until an index or re-index that failed is tried again: its cause seldom goes away sooner."""

FIRST_WAIT_SECONDS: Final = 0.2
LONGEST_WAIT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Indexed:
    """
    How far the indexer is: the documents it wrote, and the delivered position per live index.

    `failed`: the aliases that are not followed now, and why.
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
    build: Build = build_in_process,
) -> Indexed:
    """
    Keep the indices of the pipeline file current until `stop` is set.

    `build` gives an alias without an index its first one as soon as its table is copied. Waits
    during an outage of the search cluster, and for the end of another indexer's lease. An index
    that fails alone stays as it is and is tried again every minute, while the others continue.

    Raises:
        StateTaken: the state folder belongs to another pipeline of this name.
        NotSetUp, MissingSetting: nothing can be indexed.
        AliasTaken, SearchRefused, SearchFailed, IndexRefuses: no alias can be followed; the error
            of the last one.
    """
    state_folder.claim(pipeline)
    pauses, total = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS), Indexed(0)
    heartbeat = HeartbeatWriter(pipeline.indexer_heartbeat_file)
    while not stop.is_set():
        try:
            with (
                faults.named(pipeline.lake.change_log),
                opened(pipeline) as session,
                _LiveIndices(session, total.documents, build) as live,
            ):
                while not stop.is_set() and live.is_current():
                    live.tick()
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
    """WAL between the index that is furthest behind and the end of the log; `None`: not known."""
    if not indexed.delivered:
        return None
    try:
        with faults.named(pipeline.lake.change_log), pipeline.open() as opened:
            watermark = opened.watermark()
    except PgstreamError:  # it may be the lake that is unreachable
        return None
    return None if watermark is None else max(0, watermark - min(indexed.delivered.values()))


class _LiveIndices:
    """The live generations, from one opening of the cluster until it fails."""

    def __init__(self, session: SearchSession, documents: int, build: Build) -> None:
        self._session, self._documents, self._build = session, documents, build
        self._reader = LogReader(session.opened, session.watermark())
        self._schema_index = SchemaIndex(session)
        self._held: dict[str, Indexer] = {}
        self._behind = set[str]()  # held, but not yet where the others are
        self._builders: dict[str, _Builder] = {}
        self._relations: dict[str, Relation] | None = None
        self._failed: dict[str, _Failure] = {}
        self._due_aliases = list[str]()
        self._polled_at, self._epoch_read_at = 0.0, time.monotonic()
        self._relations_read_at = self._epoch_read_at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for builder in self._builders.values():
            builder.stop.set()
        for builder in self._builders.values():
            builder.join()
        for indexer in self._held.values():
            with suppress(PgstreamError):  # what is not saved is applied once more
                indexer.save()
            indexer.close()
            indexer.lease.leave()

    def is_current(self) -> bool:
        """Whether the epoch that it follows is still the newest one of the log."""
        if time.monotonic() - self._epoch_read_at < EPOCH_SECONDS:
            return True
        self._epoch_read_at = time.monotonic()
        session = self._session
        identity = session.opened.ledger.identity(session.pipeline.name)
        return identity is None or identity.epoch == session.epoch

    def tick(self) -> None:
        """Poll the aliases when it is time, and apply what is new in the log."""
        if not self._due_aliases and time.monotonic() - self._polled_at >= POLL_SECONDS:
            self._due_aliases = list(self._session.pipeline.config.search)
            self._polled_at = time.monotonic()
        now = self._due_aliases[:POLLS_AT_ONCE]
        del self._due_aliases[:POLLS_AT_ONCE]
        for alias in now:
            with self._isolated(alias):
                self._poll(alias)
        for alias in list(self._behind):
            with self._isolated(alias):
                self._catch_up(alias)
        relation_ids = [i.lease.generation.relation_id for i in self._current().values()]
        batch = self._reader.read(relation_ids, 0.0 if self._behind else READ_SECONDS)
        if batch is not None:
            self._apply(batch)
        for alias, indexer in list(self._held.items()):
            with self._isolated(alias):
                indexer.lease.keep()
        self._schema_index.tick()

    def indexed(self) -> Indexed:
        """How far it is now."""
        held = self._held.values()
        delivered = {indexer.lease.generation.index: indexer.delivered for indexer in held}
        failed = {alias: str(failure.error) for alias, failure in self._failed.items()}
        return Indexed(self._documents, delivered, failed)

    def _current(self) -> dict[str, Indexer]:
        """The held generations that have caught up."""
        return {alias: held for alias, held in self._held.items() if alias not in self._behind}

    def _apply(self, batch: LogBatch) -> None:
        for alias, indexer in self._current().items():
            if batch.watermark > indexer.delivered:
                changes = of_relations(batch.changes, [indexer.lease.generation.relation_id])
                with self._isolated(alias):
                    self._documents += indexer.apply(changes, batch.watermark)
        if batch.has_copy:
            self._relations = None

    def _catch_up(self, alias: str) -> None:
        """Apply one batch to a generation that is behind, until it is where the others are."""
        indexer = self._held[alias]
        follow(indexer, 0.0)
        if indexer.reader.watermark >= self._reader.watermark:
            self._behind.remove(alias)
            logger.info("%s is live", indexer.lease.generation.index)

    def _drop(self, alias: str) -> Indexer | None:
        """Follow an alias's generation no longer; the generation that was held."""
        self._behind.discard(alias)
        if (indexer := self._held.pop(alias, None)) is not None:
            indexer.close()
        return indexer

    def _release(self, alias: str, indexer: Indexer, **changes: State) -> None:
        indexer.save()
        indexer.lease.release(**changes)
        self._drop(alias)

    @contextmanager
    def _isolated(self, alias: str) -> Generator[None]:
        """Keep a failure of one index that only a person can fix from stopping the others."""
        try:
            yield
        except LeaseLost as lost:
            logger.info("%s", lost)
            self._drop(alias)  # the next poll finds its new holder
        except PgstreamError as error:
            if error.retry is Retry.LATER:
                raise
            held = self._drop(alias)
            if held is not None:
                held.lease.leave()
            self._failed[alias] = _Failure(error, time.monotonic() + AGAIN_SECONDS)
            all_failed = self._failed.keys() >= self._session.pipeline.config.search.keys()
            if all_failed and not isinstance(error, IndexGone):  # a deleted index is built again
                raise
            logger.error("index %s is not followed for now: %s", alias, error)  # noqa: TRY400

    def _poll(self, alias: str) -> None:
        """Hold the generation that the alias is on, and start a re-index if one is due."""
        session = self._session
        if alias in self._failed:
            if time.monotonic() < self._failed[alias].retry_at:
                return
            del self._failed[alias]
        live, held = generations.live(session.cluster, alias), self._held.get(alias)
        held_index = None if held is None else held.lease.generation.index
        holds_live = live is not None and live.index == held_index
        if session.control(alias).promoting():
            if held is not None:
                self._release(alias, held)
            return
        if held is not None and not holds_live:
            self._release(alias, held, state=State.KEPT)
            retire(session, alias, session.config(alias).keep)
        if live is not None and not holds_live:
            self._hold(alias, live.index)
        if alias in self._current():
            serve(session, self._held[alias])
        self._build_if_due(alias)

    def _hold(self, alias: str, index: str) -> None:
        control = self._session.control(alias)
        generation = control.generation(index)
        if generation is None:  # the records were lost; a re-index makes them again
            return
        try:
            lease = control.hold(generation.number)
        except GenerationHeld as held:
            logger.info("%s", held)
            return
        if not self._session.has_log_of(generation):
            lease.save(state=State.LIVE, outdated=OTHER_LOG, is_closed=True)
        elif not generation.log or generation.state is not State.LIVE:
            lease.save(state=State.LIVE, log=self._session.opened.log_id)
        self._held[alias] = self._session.indexer(alias, lease)
        self._behind.add(alias)

    def _build_if_due(self, alias: str) -> None:
        builder = self._builders.get(alias)
        if builder is not None:
            builder.raise_error()
        running = sum(builder.is_alive() for builder in self._builders.values())
        if running >= BUILDS_AT_ONCE or (builder is not None and not builder.is_over):
            return
        held = self._held.get(alias)
        live = None if held is None else held.lease.generation
        reason = self._due(alias, live)
        if reason is None:
            return
        is_manual = self._session.config(alias).reindex == "manual"
        if held is not None and live is not None and (is_manual or live.is_pinned):
            if live.outdated != reason:
                held.lease.save(outdated=reason)
            return
        logger.info("re-indexing %s: %s", alias, reason)
        self._builders[alias] = _Builder(self._build, self._session.pipeline, alias)

    def _due(self, alias: str, live: Generation | None) -> str | None:
        """Why an alias needs a new generation; `None`: it does not."""
        relation = self._current_relations().get(alias)
        if relation is None:
            return None  # the stream will copy it
        if live is None:
            return self._missing(alias)
        if (live.epoch, live.relation_id) != (self._session.epoch, relation.relation_id):
            return "another table has its name"
        if live.copied_at < relation.copied_at:
            return "its table was copied again"
        if (changed := self._changed(alias, live)) is not None:
            return changed
        return None if live.is_closed else live.outdated

    def _changed(self, alias: str, live: Generation) -> str | None:
        """What of an index is another one than when it was built: its log, or in the file."""
        if not self._session.has_log_of(live):
            return OTHER_LOG
        if live.asked and live.asked != self._session.config(alias).documents():
            return "its definition in pgstream.yaml changed"
        rules = self._session.pipeline.index_rules(alias)
        return OTHER_RULES if rules.fingerprint != live.modified else None

    def _current_relations(self) -> dict[str, Relation]:
        """
        The relation of each alias; read again after a copy, and every few seconds.

        They come from tables of the lake, read as a whole: too much for every poll.
        """
        if (
            self._relations is None
            or time.monotonic() - self._relations_read_at >= RELATION_SECONDS
        ):
            self._relations = self._session.relations()
            self._relations_read_at = time.monotonic()
        return self._relations

    def _missing(self, alias: str) -> str | None:
        """Why an alias that is not held here needs a new generation."""
        live = generations.live(self._session.cluster, alias)
        if live is None:
            return "it has no index"
        generation = self._session.control(alias).generation(live.index)
        return "the record of its index was lost" if generation is None else None


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an alias is not followed, and when to try again, by the monotonic clock."""

    error: PgstreamError
    retry_at: float


class _Builder(threading.Thread):
    """A re-index in a thread of its own, which it starts."""

    def __init__(self, build: Build, pipeline: Pipeline, alias: str) -> None:
        super().__init__(name=f"reindex-{alias}", daemon=True)
        self.stop = threading.Event()
        self._build = partial(build, pipeline, alias, self.stop)
        self._retry_at, self._is_done = time.monotonic() + AGAIN_SECONDS, False
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._is_done = self._build()
        except BaseException as error:  # noqa: BLE001 - `raise_error` raises it in the indexer
            self._error = error

    def raise_error(self) -> None:
        """Raise what ended the thread: `build` reports the failures that have a name itself."""
        if self._error is not None:
            raise self._error

    @property
    def is_over(self) -> bool:
        """Whether another one may begin: after a failure only when it is time to try again."""
        is_due = self._is_done or time.monotonic() >= self._retry_at
        return is_due and not self.is_alive()
