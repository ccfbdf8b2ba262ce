"""
Search indices as assets: one per alias of the pipeline file; materialising it is a re-index.

A materialisation is a new index behind the alias or, between two of those, how far the live index
is, reported by the job `index` that keeps all of them current. `index` runs an op and no asset: an
asset has one way to be made, and here that is `reindex`, which a person or a schedule requests.
"""

import itertools
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from pgstream_dagster.assets.columns import SCHEMA, index_columns
from pgstream_dagster.assets.errors import as_dagster_errors
from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.reporter import (
    POLL_SECONDS,
    ProgressReport,
    report_check,
    require_started,
)
from pgstream_dagster.assets.throttle import FRESHNESS
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.errors import IndexDiffers
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.threads import run_in_thread

if TYPE_CHECKING:
    from pgstream_dagster.search.index import Indexed
    from pgstream_dagster.search.reindex import Phase, Reindexed, ReindexProgress

PREFIX: Final = "search"

INDEX_EQUALS_FOLD: Final = "index_equals_fold"
"""The check of every index; a re-index evaluates it before it moves the alias."""

POOL: Final = "reindex"
"""One run at a time: each has a JVM, and one keeps the cluster busy."""

LINE_SECONDS: Final = 30.0
"""Between log lines of one phase: 0.9 KB of event log each."""


class ReindexConfig(dg.Config):
    """Run configuration of each index in the job `reindex`."""

    keep: int | None = Field(
        default=None,
        ge=0,
        description="Former indices that stay for `rollback`; without it as the file says.",
    )


def key_of(names: Names, alias: str) -> dg.AssetKey:
    """The key of an alias's asset."""
    return names.key(PREFIX, alias)


def index_assets(names: Names, indices: Mapping[str, IndexConfig]) -> list[dg.AssetsDefinition]:
    """
    An asset per alias.

    Each is a step of its own: if one index cannot be built, the others still are.
    """
    ops = op_names(indices)
    return [
        _index_asset(names, alias, config.table, names.prefixed(ops[alias]))
        for alias, config in indices.items()
    ]


def op_names(aliases: Iterable[str], prefix: str = PREFIX) -> dict[str, str]:
    """A step's name per alias; Dagster accepts fewer characters in it than search engines do."""
    names: dict[str, str] = {}
    for alias in sorted(aliases):
        plain = f"{prefix}__{re.sub(r'[^a-z0-9_]', '_', alias)}"
        numbered = (f"{plain}__{number}" for number in itertools.count(2))
        candidates = itertools.chain([plain], numbered)
        names[alias] = next(name for name in candidates if name not in names.values())
    return names


def _index_asset(names: Names, alias: str, table: str, op_name: str) -> dg.AssetsDefinition:
    key = key_of(names, alias)

    @dg.multi_asset(
        name=op_name,
        specs=[
            names.spec(
                *(PREFIX, alias),
                deps=[names.key(CHANGE_LOG)],
                group_name=PREFIX,
                kinds={"opensearch"},
                freshness_policy=FRESHNESS,
                description=f"A document per row of {table}, behind the alias {alias}. Readers see"
                " one complete index at every moment.",
            )
        ],
        check_specs=[
            dg.AssetCheckSpec(
                INDEX_EQUALS_FOLD,
                asset=key,
                blocking=True,
                description="The new index says what the log says, document by document, before the"
                " alias moves to it.",
            )
        ],
        pool=names.in_instance(POOL),
        required_resource_keys=names.resources,
    )
    def built(context: dg.AssetExecutionContext, config: ReindexConfig) -> Iterator[Any]:
        """Build an index again from the start of the log, compare it, move the alias to it."""
        yield _build(context, names, alias, config)

    return built


def _build(
    context: dg.AssetExecutionContext, names: Names, alias: str, config: ReindexConfig
) -> dg.MaterializeResult[Any]:
    from pgstream_dagster.search.reindex import reindex

    stop, log = threading.Event(), _ProgressLog(context)
    with as_dagster_errors():
        pipeline = names.open(context)
        try:
            done = run_in_thread(
                lambda: reindex(pipeline, alias, keep=config.keep, on_progress=log.put, stop=stop),
                # Once the run has ended, nothing of it may move the alias.
                stop=stop,
                poll=log.poll,
                poll_seconds=POLL_SECONDS,
            )
        except IndexDiffers as error:
            report_check(
                context,
                key_of(names, alias),
                INDEX_EQUALS_FOLD,
                passed=False,
                description=str(error),
                metadata={"differing": error.differences, "sample": ", ".join(error.sample)},
                blocking=True,
            )
            raise
    assert done is not None  # only `run_in_thread` sets `stop`, and it raises then
    compared = dg.AssetCheckResult(passed=True, metadata={"documents": done.documents})
    return dg.MaterializeResult(metadata=metadata(done), check_results=[compared])


class _ProgressLog:
    """Logs how far a re-index is: at every new phase, else every `LINE_SECONDS`."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context = context
        self._progress: ReindexProgress | None = None
        self._phase: Phase | None = None
        self._logged_at = 0.0

    def put(self, progress: "ReindexProgress") -> None:
        """Called by the re-index: only stores."""
        self._progress = progress

    def poll(self) -> None:
        """Called by the op's thread. Raises `Failure` when this run was ended in Dagster."""
        require_started(self._context)
        progress, now = self._progress, time.monotonic()
        if progress is None:
            return
        if progress.phase is self._phase and now - self._logged_at < LINE_SECONDS:
            return
        self._phase, self._logged_at = progress.phase, now
        line = f"{progress.index}: {progress.phase.value}, {progress.documents:,} documents"
        self._context.log.info(line)


def metadata(done: "Reindexed") -> dict[str, Any]:
    """The index that the alias is on now, and the cost of building it."""
    return {
        **index_position(done.index, done.delivered),
        SCHEMA: index_columns(done.fields),
        "replaced": done.replaced or "",
        "documents": done.documents,
        "refused": done.refused,
        "load_seconds": done.load_seconds,
        "documents_per_second": done.documents / done.load_seconds if done.load_seconds else 0.0,
        "seconds": done.seconds,
    }


def progress_reports(names: Names, indexed: "Indexed") -> list[ProgressReport]:
    """
    How far each live index is.

    `written` counts the run's documents, of all indices together, since it has caught up.
    """
    return [
        ProgressReport(
            key_of(names, index.rpartition("-")[0]),  # a generation: its alias and its number
            int(delivered),
            partial(index_position, index, delivered, written=indexed.documents),
        )
        for index, delivered in indexed.delivered.items()
    ]


def index_position(index: str, delivered: Lsn, **facts: Any) -> dict[str, Any]:
    """An index, the position of the log up to which it is current, and further facts."""
    return {"index": index, **position("delivered", delivered), **facts}
