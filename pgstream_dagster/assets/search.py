"""
Search indices as assets: one per alias of the pipeline file; materialising it is a re-index.

A materialisation is a new index behind the alias, and in between how far the live one is: those are
told by the job `index`, which keeps all of them current. That one is an op and no asset: an asset
has one way to be made, and here that is `reindex`, the one a person or a schedule asks for.
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

from pgstream_dagster.assets.columns import SCHEMA, of_index
from pgstream_dagster.assets.errors import told_to_dagster
from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.assets.reporter import (
    LOOK_SECONDS,
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
    from pgstream_dagster.search.rollback import RolledBack

PREFIX: Final = "search"

INDEX_EQUALS_FOLD: Final = "index_equals_fold"
"""The check of every index; a re-index has its outcome before its alias moves."""

POOL: Final = "reindex"
"""One run at a time: each has a JVM, and the cluster is busy with one."""

LINE_SECONDS: Final = 30.0
"""Between lines of one phase: 0.9 KB of event log each."""


class ReindexConfig(dg.Config):
    """Run configuration of each index in the job `reindex`."""

    keep: int | None = Field(
        default=None,
        ge=0,
        description="Former indices that stay for `rollback`; without it as the file says.",
    )


def key_of(names: Names, alias: str) -> dg.AssetKey:
    """The asset that an alias is."""
    return names.key(PREFIX, alias)


def index_assets(names: Names, indices: Mapping[str, IndexConfig]) -> list[dg.AssetsDefinition]:
    """
    An asset per alias.

    Each is a step of its own, so one index that cannot be built stops none of the others.
    """
    ops = op_names(indices)
    return [
        _index_asset(names, alias, config.table, names.of(ops[alias]))
        for alias, config in indices.items()
    ]


def op_names(aliases: Iterable[str]) -> dict[str, str]:
    """A step's name per alias; Dagster takes fewer characters there than search engines do."""
    names: dict[str, str] = {}
    for alias in sorted(aliases):
        plain = f"{PREFIX}__{re.sub(r'[^a-z0-9_]', '_', alias)}"
        numbered = (f"{plain}__{number}" for number in itertools.count(2))
        wanted = itertools.chain([plain], numbered)
        names[alias] = next(name for name in wanted if name not in names.values())
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
        """Build an index again from the log's beginning, compare it, move the alias to it."""
        yield _build(context, names, alias, config)

    return built


def _build(
    context: dg.AssetExecutionContext, names: Names, alias: str, config: ReindexConfig
) -> dg.MaterializeResult[Any]:
    from pgstream_dagster.search.reindex import reindex

    stop, key = threading.Event(), key_of(names, alias)
    lines = _Lines(context)
    with told_to_dagster():
        opened = names.open(context)
        try:
            done = run_in_thread(
                lambda: reindex(opened, alias, keep=config.keep, on_progress=lines.put, stop=stop),
                # Once the run has ended, nothing of it may move the alias.
                stop=stop,
                look=lines.look,
                look_seconds=LOOK_SECONDS,
            )
        except IndexDiffers as error:
            report_check(context, _differs(key, error))
            raise
    assert done is not None  # only `run_in_thread` sets `stop`, and it raises then
    compared = dg.AssetCheckResult(passed=True, metadata={"documents": done.documents})
    return dg.MaterializeResult(metadata=metadata(done), check_results=[compared])


def _differs(key: dg.AssetKey, error: IndexDiffers) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=INDEX_EQUALS_FOLD,
        passed=False,
        description=str(error),
        metadata={"differing": error.differences, "sample": ", ".join(error.sample)},
        blocking=True,
    )


class _Lines:
    """Says in the run's log how far a re-index is: at every new phase, else now and then."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context = context
        self._progress: ReindexProgress | None = None
        self._phase: Phase | None = None
        self._said_at = 0.0

    def put(self, progress: "ReindexProgress") -> None:
        """Called by the re-index: only remembers."""
        self._progress = progress

    def look(self) -> None:
        """Called by the op's thread. Raises `Failure` when somebody ended this run meanwhile."""
        require_started(self._context)
        progress, now = self._progress, time.monotonic()
        if progress is None:
            return
        if progress.phase is self._phase and now - self._said_at < LINE_SECONDS:
            return
        self._phase, self._said_at = progress.phase, now
        said = f"{progress.index}: {progress.phase.value}, {progress.documents:,} documents"
        self._context.log.info(said)


def metadata(done: "Reindexed") -> dict[str, Any]:
    """The index that the alias is on now, and what it took to build it."""
    return {
        **_position(done.index, done.delivered),
        SCHEMA: of_index(done.fields),
        "replaced": done.replaced or "",
        "documents": done.documents,
        "refused": done.refused,
        "load_seconds": done.load_seconds,
        "documents_per_second": done.documents / done.load_seconds if done.load_seconds else 0.0,
        "seconds": done.seconds,
    }


def rolled_back(done: "RolledBack") -> dict[str, Any]:
    """The index that the alias is on again."""
    return {**_position(done.index, done.delivered), "replaced": done.replaced}


def news(names: Names, indexed: "Indexed") -> list[ProgressReport]:
    """
    How far each live index is.

    `written` documents are the run's, of all indices together, since it has caught up.
    """
    return [
        ProgressReport(
            key_of(names, index.rpartition("-")[0]),  # a generation: its alias and its number
            int(delivered),
            partial(_followed, index, delivered, indexed.documents),
        )
        for index, delivered in indexed.delivered.items()
    ]


def _followed(index: str, delivered: Lsn, written: int) -> dict[str, Any]:
    return {**_position(index, delivered), "written": written}


def _position(index: str, delivered: Lsn) -> dict[str, Any]:
    """An index, and up to where the log is in it."""
    return {"index": index, **position("delivered", delivered)}
