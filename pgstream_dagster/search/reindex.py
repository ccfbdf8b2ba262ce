"""
Re-index: a new generation from the log's beginning while the old one serves, then the alias moves.

The new index is filled with the fold of the log up to a watermark, follows the log from there, is
compared with the fold at one position, document by document, and catches up again; only then the
alias moves, in one atomic update. What ends this before leaves the alias where it was, and the next
run removes what was begun.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from pgstream_dagster.backoff import waits
from pgstream_dagster.changelog.dead_letters import DeadLetter, LetterState
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
from pgstream_dagster.readers.log_reader import LogReader
from pgstream_dagster.search import build, generations, verify
from pgstream_dagster.search.control import Generation, Lease, State
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

LET_GO_SECONDS: Final = 60.0
"""How long the writer of the live index may take to let go: it looks twice a second."""

COMPARISONS: Final = 8
FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 15.0
"""Between comparisons that the cluster did not answer: a minute in all, below a lease's silence."""

UNREACHABLE: Final = SearchUnreachable.__name__
"""How the reason of a task begins that had no answer."""

BEHIND_BYTES: Final = 1 << 20
"""Of WAL: a busy source never lets anybody be there wholly."""


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

    `expected` is a guess while it loads: the documents readers find meanwhile, `None` without any.
    """

    alias: str
    index: str
    phase: Phase
    documents: int
    expected: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Reindexed:
    """One re-index that is done; `replaced` is the index that the alias was on before."""

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
    Build a new generation and move the alias to it; `None` when `stop` was set before.

    `keep` former generations stay for `rollback`; without it, as many as the pipeline file says.

    Raises:
        NoSuchAlias, NotIndexable, NotCopied, AliasTaken: nothing was begun.
        GenerationHeld: another re-index of this alias runs.
        IndexRefuses, IndexDiffers: the alias stays; the documents are at fault, or we are.
        SearchUnreachable, SearchRefused, SearchFailed, PromotionOvertaken, LeaseLost
    """
    with opened(pipeline, alias) as session:
        work = _Reindex(session, alias, on_progress, stop or threading.Event())
        done = work.run()
        if done is not None:
            retire(session, alias, session.config(alias).keep if keep is None else keep)
        return done


@named
def planned(pipeline: Pipeline, alias: str) -> Generation:
    """
    The generation that a re-index would make; raises what it would, and changes nothing.

    The cluster is asked whether it accepts mapping and settings, by an empty index that is dropped.
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
        session.config(self.alias)  # before the cluster is asked for a name that is not ours
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
                raise lost from error  # what failed is no more ours: dropped, or moved on
            raise

    def _built(self, lease: Lease, over: generations.Live | None) -> Reindexed | None:
        self._load(lease)
        indexer = self.session.indexer(self.alias, lease)
        self._tell(Phase.CATCHING_UP, lease)
        reader = LogReader(self.session.opened, lease.generation.delivered)
        catch_up(self.session, indexer, reader, self.stop)
        reach("build.caught_up")
        if self.stop.is_set():
            lease.leave()
            return None
        self._verify(indexer)
        reach("build.verified")
        catch_up(self.session, indexer, reader, self.stop)
        if self.stop.is_set():
            lease.leave()
            return None
        self._tell(Phase.PROMOTING, lease)
        promote(self.session, indexer, reader, over)
        done = lease.generation
        self._tell(Phase.DONE, lease)
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

    def _load(self, lease: Lease) -> None:
        """Fill the index with the fold up to the watermark of now."""
        session, generation = self.session, lease.generation
        settings = session.config(self.alias).settings
        reach("build.recorded")
        generations.make(session.cluster, generation, settings)
        reach("build.created")
        jvm.spark(session.pipeline.jvm)  # its start is not part of the load
        upto, began = session.watermark(), time.monotonic()

        def job() -> build.Loaded:
            found = build.documents(session.rows(generation, upto), generation)
            return build.load(found, generation, session.settings)

        def tell() -> None:
            written = session.cluster.written(generation.index)
            self.documents = max(self.documents, written)  # a node that restarts counts again
            self._tell(Phase.LOADING, lease)

        loaded = self._beside(job, lease, tell)
        self.documents = self.expected = loaded.documents
        self.load_seconds = time.monotonic() - began
        session.letters.add(_letter(generation, row) for row in loaded.refused)
        generations.loaded(session.cluster, generation, settings)
        lease.save(
            state=State.CATCHING_UP,
            delivered=upto,
            refused=len(loaded.refused),
        )
        reach("build.loaded")

    def _verify(self, indexer: Indexer) -> None:
        """The index as it stands against the fold at that position."""
        self._tell(Phase.VERIFYING, indexer.lease)
        found = self._compared(indexer)
        if not found.identical:
            raise IndexDiffers(indexer.lease.generation.index, found.differences, found.sample)

    def _compared(self, indexer: Indexer) -> Difference:
        """
        Compare again after an outage of the cluster, until there is an answer.

        The whole of it: a page of a search that got lost on the way cannot be asked for again.
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
        return self._beside(
            lambda: difference(self.session, indexer.lease.generation, indexer.delivered),
            indexer.lease,
            lambda: self._tell(Phase.VERIFYING, indexer.lease),
        )

    def _beside(self, job: Callable[[], T], lease: Lease, tell: Callable[[], None]) -> T:
        """
        Run a Spark job while this thread keeps the lease.

        Raises:
            Cancelled: `stop` was set meanwhile, and the job has ended by that.
        """

        def poll() -> None:
            try:
                lease.keep()
                tell()
            except SearchUnreachable as error:  # how long to wait is for the job to say
                logger.warning("%s", error)

        context = jvm.spark(self.session.pipeline.jvm).sparkContext
        tag = lease.generation.index
        running = jvm.run_job(
            context, tag, job, stop=self.stop, poll=poll, poll_seconds=POLL_SECONDS
        )
        with build.named_failure(tag):  # also a JVM that is killed before its job began
            return running.result()

    def _tell(self, phase: Phase, lease: Lease) -> None:
        seconds = time.monotonic() - self._began
        index = lease.generation.index
        if phase is not self._phase:
            logger.info("%s: %s, %.1f s", index, phase.value, seconds)
            self._phase = phase
        told = ReindexProgress(self.alias, index, phase, self.documents, self.expected, seconds)
        self._on_progress(told)


def _expected(session: SearchSession, alias: str, over: generations.Live | None) -> int | None:
    """
    About how many documents there will be: as many as behind the alias now.

    One request; counting the fold would cost a good part of the load. Dead letters and changes
    since make it a little wrong, another copy of the table as wrong as can be.
    """
    on = None if over is None else session.control(alias).of(over.index)
    try:
        return None if on is None else generations.count(session.cluster, on)
    except SearchFailed:
        return None  # dropped or closed meanwhile: what it would tell is not needed


def catch_up(
    session: SearchSession, indexer: Indexer, reader: LogReader, stop: threading.Event
) -> None:
    """Apply the log until there is hardly anything left of it."""
    while not stop.is_set():
        is_there = not follow(indexer, reader, QUIET_SECONDS)
        if is_there and session.watermark() - reader.watermark < BEHIND_BYTES:
            break
    indexer.save()


def follow(indexer: Indexer, reader: LogReader, timeout: float) -> bool:
    """Apply the next batch of a reader for this generation alone; whether there was one."""
    batch = reader.read([indexer.lease.generation.relation_id], timeout)
    if batch is not None:
        indexer.apply(batch.changes, batch.watermark)
    return batch is not None


def promote(
    session: SearchSession, indexer: Indexer, reader: LogReader, over: generations.Live | None
) -> None:
    """
    Move the alias to the generation that is held, and leave it to the live indexer.

    The former one stands still meanwhile, and this one catches up with it: what readers have seen
    behind the alias they see after it has moved, too.
    """
    lease = indexer.lease
    lease.save(state=State.PROMOTING)
    former = None if over is None else _former(session, lease, over)
    catch_up(session, indexer, reader, threading.Event())
    generations.refresh(session.cluster, lease.generation)
    reach("promote.ready")
    lease.require()
    generations.promote(session.cluster, lease.generation, over)
    reach("promote.moved")
    lease.release(state=State.LIVE)
    if former is not None:
        former.release(state=State.KEPT)
    reach("promote.recorded")
    logger.info("alias %s is on %s", lease.generation.alias, lease.generation.index)


def _former(session: SearchSession, lease: Lease, over: generations.Live) -> Lease | None:
    """Hold the live generation as soon as its writer lets go; `None`: it is not known."""
    control = session.control(lease.generation.alias)
    known = control.of(over.index)
    deadline = time.monotonic() + LET_GO_SECONDS
    while known is not None:
        try:
            return control.hold(known.number)
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
    """How an index differs from the fold at its position; one that goes on needs `touched`."""
    generations.refresh(session.cluster, generation)
    found = build.documents(session.rows(generation, at), generation)
    dead = list(session.letters.open(generation.index))
    shards = generations.shards(session.cluster, generation)
    return verify.compare(
        found, generation, session.settings, shards=shards, passed_over=dead, touched=touched
    )


def clear(session: SearchSession, alias: str) -> None:
    """
    Remove what an earlier re-index began and did not end.

    Raises:
        GenerationHeld: it runs still.
    """
    on = generations.live(session.cluster, alias)
    control = session.control(alias)
    for generation in control.generations():
        if not generation.was_live and not (on and on.index == generation.index):
            _drop(session, control.hold(generation.number))


def retire(session: SearchSession, alias: str, keep: int) -> list[str]:
    """Drop former generations but for the newest `keep`; those that somebody holds stay."""
    on = generations.live(session.cluster, alias)
    control = session.control(alias)
    former = [] if on is None else control.former(on.index)
    dropped: list[str] = []
    for generation in former[: max(0, len(former) - keep)]:
        try:
            lease = control.hold(generation.number)
        except (GenerationHeld, LeaseLost):
            continue  # its writer learns that the alias has moved, and retires it
        _drop(session, lease)
        dropped.append(generation.index)
    return dropped


def _drop(session: SearchSession, lease: Lease) -> None:
    lease.save(state=State.RETIRING)
    session.cluster.drop(lease.generation.index)
    reach("retire.dropped")
    session.control(lease.generation.alias).forget(lease)
    logger.info("%s is retired", lease.generation.index)


def _letter(generation: Generation, row: dict[str, Any]) -> DeadLetter:
    return DeadLetter(
        generation.index,
        row["id"],
        tuple(row["key"]),
        generation.epoch,
        Lsn(row["version"]),
        LetterState.REFUSED,
        row["type"],
        row["reason"],
        document=row["line"].partition("\n")[2].rstrip("\n"),
    )
