"""
Re-index: builds a new generation from the log while the old one serves, then moves the alias.

It fills the new index with the fold of the log up to a watermark, follows the log from there,
compares the index with the fold at one position, document by document, and catches up again. Then
the alias moves, in one atomic update. If it ends before, the alias stays where it was, and the next
run removes the unfinished generation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from pgstream_dagster.backoff import waits
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import (
    BuildFailed,
    GenerationHeld,
    IndexDiffers,
    LeaseLost,
    SearchError,
    SearchFailed,
    SearchUnreachable,
)
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search import build, generations, verify
from pgstream_dagster.search.control import Generation, GenerationLease, State
from pgstream_dagster.search.fields import Field
from pgstream_dagster.search.indexer import Indexer
from pgstream_dagster.search.session import SearchSession, opened
from pgstream_dagster.search.verify import Difference
from pgstream_dagster.stop import Cancelled

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 0.05
"""How long the log must have nothing new for a generation to count as caught up."""

RELEASE_SECONDS: Final = 60.0
"""How long the writer of the live index may take to release it: it polls twice a second."""

COMPARISONS: Final = 8
FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 15.0
"""Between comparisons without an answer: a minute in all, each below `control.LEASE_SECONDS`."""

UNREACHABLE: Final = SearchUnreachable.__name__
"""Begins the reason of a task that got no answer."""

BEHIND_BYTES: Final = 1 << 20
"""Of WAL; counts as caught up: no reader of a busy source ever reaches its end."""


class Phase(StrEnum):
    """What a re-index is doing."""

    LOADING = "loading"
    CATCHING_UP = "catching up"
    VERIFYING = "verifying"
    PROMOTING = "promoting"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ReindexProgress:
    """
    How far a re-index is.

    `expected` is an estimate while it loads: the documents behind the alias; `None` without any.
    """

    alias: str
    index: str
    phase: Phase
    documents: int
    expected: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Reindexed:
    """A completed re-index; `replaced` is the index that the alias was on before."""

    alias: str
    index: str
    replaced: str | None
    documents: int
    refused: int
    delivered: Lsn
    load_seconds: float
    seconds: float
    fields: tuple[Field, ...] = ()


OnProgress: TypeAlias = Callable[[ReindexProgress], None]


@named
def reindex(
    pipeline: Pipeline,
    alias: str,
    *,
    keep: int | None = None,
    on_progress: OnProgress = lambda progress: None,
    stop: threading.Event | None = None,
) -> Reindexed | None:
    """
    Build a new generation and move the alias to it; `None` if `stop` was set before that.

    `keep` former generations stay for `rollback`; by default as many as in the pipeline file.

    Raises:
        NoSuchAlias, NotIndexable, NotCopied, AliasTaken: nothing was started.
        GenerationHeld: another re-index of this alias runs.
        IndexRefuses, IndexDiffers: the alias stays; the documents are at fault, or pgstream is.
        SearchUnreachable, SearchRefused, SearchFailed, PromotionOvertaken, LeaseLost
    """
    with opened(pipeline, alias) as session:
        done = _Reindex(session, alias, on_progress, stop or threading.Event()).run()
        if done is not None:
            retire(session, alias, session.config(alias).keep if keep is None else keep)
        return done


@named
def planned(pipeline: Pipeline, alias: str) -> Generation:
    """
    The generation that a re-index would make; raises the same errors, and changes nothing.

    Creates and drops an empty index to check that the cluster accepts mapping and settings.
    """
    with opened(pipeline, alias) as session:
        generations.live(session.cluster, alias)
        generation = session.new_generation(alias, session.relation(alias))
        generations.check(session.cluster, generation, session.config(alias).settings)
        return generation


class _Reindex:
    """One run."""

    def __init__(
        self, session: SearchSession, alias: str, on_progress: OnProgress, stop: threading.Event
    ) -> None:
        self.session, self.alias, self.stop = session, alias, stop
        self._on_progress, self._began = on_progress, time.monotonic()
        self.documents, self.load_seconds = 0, 0.0
        self.expected: int | None = None
        self._phase: Phase | None = None

    def run(self) -> Reindexed | None:
        session = self.session
        session.config(self.alias)  # fails before a request names an alias that is not ours
        over = generations.live(session.cluster, self.alias)
        relation = session.relation(self.alias)
        generation = session.new_generation(self.alias, relation)
        clear(session, self.alias)
        self.expected = _expected(session, self.alias, over)
        lease = session.control(self.alias).begin(generation)
        try:
            return self._built(lease, over)
        except Cancelled:
            lease.leave()
            return None
        except BaseException as error:
            lost = lease.leave()
            if lost is not None and isinstance(error, SearchError):
                raise lost from error  # another process holds the index, or dropped it
            raise

    def _built(self, lease: GenerationLease, over: generations.Live | None) -> Reindexed:
        self._load(lease)
        with closing(self.session.indexer(self.alias, lease)) as indexer:
            self._report(Phase.CATCHING_UP, lease)
            self._catch_up(indexer)
            reach("build.caught_up")
            self._verify(indexer)
            reach("build.verified")
            self._catch_up(indexer)
            self._report(Phase.PROMOTING, lease)
            promote(self.session, indexer, over)
        done = lease.generation
        self._report(Phase.DONE, lease)
        return Reindexed(
            self.alias,
            done.index,
            None if over is None else over.index,
            self.documents,
            done.refused,
            done.delivered,
            self.load_seconds,
            time.monotonic() - self._began,
            done.fields,
        )

    def _load(self, lease: GenerationLease) -> None:
        """Fill the index with the fold up to the current watermark."""
        session, generation = self.session, lease.generation
        settings = session.config(self.alias).settings
        reach("build.recorded")
        generations.create(session.cluster, generation, settings)
        reach("build.created")
        jvm.spark(session.pipeline.jvm)  # its start is not part of the load
        upto, began = session.watermark(), time.monotonic()

        def job() -> build.Loaded:
            rendered = build.documents(session.rows(generation, upto), generation)
            return build.load(rendered, generation, session.settings)

        def report() -> None:
            written = session.cluster.written(generation.index)
            self.documents = max(self.documents, written)  # a node that restarts counts from 0
            self._report(Phase.LOADING, lease)

        loaded = self._run_job(job, lease, report)
        self.documents = self.expected = loaded.documents
        self.load_seconds = time.monotonic() - began
        session.letters.add(loaded.letters)
        generations.finish_load(session.cluster, generation, settings)
        lease.save(state=State.CATCHING_UP, delivered=upto, refused=len(loaded.letters))
        reach("build.loaded")

    def _catch_up(self, indexer: Indexer) -> None:
        catch_up(self.session, indexer, self.stop)
        if self.stop.is_set():
            raise Cancelled

    def _verify(self, indexer: Indexer) -> None:
        """Compare the index with the fold at the same position."""
        self._report(Phase.VERIFYING, indexer.lease)
        compared = self._compared(indexer)
        if not compared.identical:
            index = indexer.lease.generation.index
            raise IndexDiffers(index, compared.differences, compared.sample)

    def _compared(self, indexer: Indexer) -> Difference:
        """
        Compare again after an outage of the cluster, until there is an answer.

        Starts over each time: a page of a search that was lost cannot be requested again.
        """
        for pause in islice(waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS), COMPARISONS - 1):
            try:
                return self._compared_once(indexer)
            except (SearchUnreachable, BuildFailed) as error:
                if isinstance(error, BuildFailed) and not error.reason.startswith(UNREACHABLE):
                    raise
                logger.warning("%s; comparing again in %.1f s", error, pause)
            if self.stop.wait(pause):
                raise Cancelled
        return self._compared_once(indexer)

    def _compared_once(self, indexer: Indexer) -> Difference:
        return self._run_job(
            lambda: difference(self.session, indexer.lease.generation, indexer.delivered),
            indexer.lease,
            lambda: self._report(Phase.VERIFYING, indexer.lease),
        )

    def _run_job(
        self, job: Callable[[], T], lease: GenerationLease, report: Callable[[], None]
    ) -> T:
        """
        Run a Spark job while this thread keeps the lease and calls `report`.

        Raises:
            Cancelled: `stop` was set and ended the job.
        """

        def poll() -> None:
            try:
                lease.keep()
                report()
            except SearchUnreachable as error:  # the job decides how long to wait
                logger.warning("%s", error)

        context = jvm.spark(self.session.pipeline.jvm).sparkContext
        tag = lease.generation.index
        running = jvm.run_job(
            context, tag, job, stop=self.stop, poll=poll, poll_seconds=POLL_SECONDS
        )
        with build.named_failure(tag):  # also if the JVM is killed before the job begins
            return running.result()

    def _report(self, phase: Phase, lease: GenerationLease) -> None:
        seconds = time.monotonic() - self._began
        index = lease.generation.index
        if phase is not self._phase:
            logger.info("%s: %s, %.1f s", index, phase.value, seconds)
            self._phase = phase
        self._on_progress(
            ReindexProgress(self.alias, index, phase, self.documents, self.expected, seconds)
        )


def _expected(session: SearchSession, alias: str, over: generations.Live | None) -> int | None:
    """
    Estimate of the number of documents: as many as are behind the alias now.

    One request; counting the fold would take a good part of the time of the load. Dead letters and
    later changes make it a little wrong, another copy of the table can make it very wrong.
    """
    live = None if over is None else session.control(alias).generation(over.index)
    try:
        return None if live is None else session.cluster.count(live.index)
    except SearchFailed:
        return None  # dropped or closed in the meantime; nothing depends on the estimate


def catch_up(session: SearchSession, indexer: Indexer, stop: threading.Event) -> None:
    """Apply the log until its end is nearly reached, or `stop` is set; then save the progress."""
    while not stop.is_set():
        is_quiet = not follow(indexer, QUIET_SECONDS)
        if is_quiet and session.watermark() - indexer.reader.watermark < BEHIND_BYTES:
            break
    indexer.save()


def follow(indexer: Indexer, timeout: float) -> bool:
    """Apply the next batch of the generation's own reader; whether there was one."""
    batch = indexer.reader.read([indexer.lease.generation.relation_id], timeout)
    if batch is not None:
        indexer.apply(batch.changes, batch.watermark)
    return batch is not None


def promote(session: SearchSession, indexer: Indexer, over: generations.Live | None) -> None:
    """
    Move the alias to the held generation, and leave that to the live indexer.

    The former generation receives no changes meanwhile, and this one catches up with it: what a
    search has seen behind the alias it still sees after the move.
    """
    lease = indexer.lease
    lease.save(state=State.PROMOTING)
    former = None if over is None else _former(session, lease, over)
    catch_up(session, indexer, threading.Event())
    session.cluster.refresh(lease.generation.index)
    reach("promote.ready")
    lease.require()
    generations.promote(session.cluster, lease.generation, over)
    reach("promote.moved")
    lease.release(state=State.LIVE)
    if former is not None:
        former.release(state=State.KEPT)
    reach("promote.recorded")
    logger.info("alias %s is on %s", lease.generation.alias, lease.generation.index)


def _former(
    session: SearchSession, lease: GenerationLease, over: generations.Live
) -> GenerationLease | None:
    """Hold the live generation as soon as its writer releases it; `None`: it has no record."""
    control = session.control(lease.generation.alias)
    generation = control.generation(over.index)
    deadline = time.monotonic() + RELEASE_SECONDS
    while generation is not None:
        try:
            return control.hold(generation.number)
        except GenerationHeld:
            if time.monotonic() > deadline:
                raise
            lease.keep()
            time.sleep(QUIET_SECONDS)
    return None


def difference(
    session: SearchSession,
    generation: Generation,
    at: Lsn,
    touched: verify.Touched | None = None,
) -> Difference:
    """How an index differs from the fold at a position; a live index needs `touched`."""
    session.cluster.refresh(generation.index)
    rendered = build.documents(session.rows(generation, at), generation)
    dead = list(session.letters.open(generation.index))
    shards = generations.shards(session.cluster, generation)
    return verify.compare(
        rendered, generation, session.settings, shards=shards, skipped=dead, touched=touched
    )


def clear(session: SearchSession, alias: str) -> None:
    """
    Remove the unfinished generations of earlier re-indexes.

    Raises:
        GenerationHeld: one still runs.
    """
    live = generations.live(session.cluster, alias)
    control = session.control(alias)
    for generation in control.generations():
        if not generation.was_live and not (live and live.index == generation.index):
            _drop(session, control.hold(generation.number))


def retire(session: SearchSession, alias: str, keep: int) -> list[str]:
    """Drop the former generations except the newest `keep` and those that a process holds."""
    live = generations.live(session.cluster, alias)
    control = session.control(alias)
    former = [] if live is None else control.former(live.index)
    dropped: list[str] = []
    for generation in former[: max(0, len(former) - keep)]:
        try:
            lease = control.hold(generation.number)
        except (GenerationHeld, LeaseLost):
            continue  # its writer notices that the alias has moved, and retires it
        _drop(session, lease)
        dropped.append(generation.index)
    return dropped


def _drop(session: SearchSession, lease: GenerationLease) -> None:
    lease.save(state=State.RETIRING)
    session.cluster.drop(lease.generation.index)
    reach("retire.dropped")
    session.control(lease.generation.alias).forget(lease)
    logger.info("%s is retired", lease.generation.index)
