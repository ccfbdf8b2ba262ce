"""Copies beside the stream: tables chosen by a person, and relations the stream wants."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pgstream_dagster.changelog.ledger import PipelineIdentity
from pgstream_dagster.copy.copying import (
    Copied,
    Copier,
    OnProgress,
    only_copier,
    published_now,
    silent,
)
from pgstream_dagster.errors import NoSuchTable
from pgstream_dagster.named import named
from pgstream_dagster.patterns import canonical
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.origin import adopt
from pgstream_dagster.stop import Stop


@named
def snapshot(
    pipeline: Pipeline,
    tables: Sequence[str],
    *,
    on_progress: OnProgress = silent,
    stop: Stop | None = None,
) -> list[Copied]:
    """
    Copy these tables (`namespace.name`, parts with dots in double quotes) again.

    Their readers start them again from it. Waits while another process copies.

    Raises:
        NotSetUp: `setup` was never run.
        OtherSystem, TimelineForked, SourceBehind, SourceRestored: the log is of something else.
        NoSuchTable: the publication has no such table.
        PgstreamError: a table could not be copied; the others are.
        Cancelled: asked to stop; what was under way is not in the log.
    """
    _require_published(pipeline, tables, stop or Stop())
    known = _known(pipeline)
    with (
        only_copier(pipeline, wait=True, on_progress=on_progress, stop=stop),
        _copier(pipeline, known, on_progress, stop) as copier,
    ):
        by_name = {table.full_name: table.relation_id for table in copier.tables()}
        for name in tables:  # one may be gone by now
            if canonical(name) not in by_name:
                raise NoSuchTable(name, known.publication)
        return copier.copy([by_name[canonical(name)] for name in tables])


def _require_published(pipeline: Pipeline, tables: Sequence[str], stop: Stop) -> None:
    """A name that is misspelt is told before a JVM starts."""
    pipeline.require_set_up()
    publication = pipeline.config.source.publication
    names = {table.full_name for table in published_now(pipeline.dsn, publication, stop)}
    for name in tables:
        if canonical(name) not in names:
            raise NoSuchTable(name, publication)


def copy_relations(
    pipeline: Pipeline, relation_ids: Collection[int], *, stop: Stop | None = None
) -> list[Copied]:
    """
    Copy these relations from a new snapshot; for a thread of the process that streams.

    Raises:
        CopyRunning: another process copies tables of this pipeline.
        PgstreamError: a table could not be copied; the others are.
        Cancelled: asked to stop; what was under way is not in the log.
    """
    with (
        only_copier(pipeline, wait=False, on_progress=silent, stop=stop),
        _copier(pipeline, _known(pipeline), silent, stop) as copier,
    ):
        return copier.copy(relation_ids)


def _known(pipeline: Pipeline) -> PipelineIdentity:
    """The source, after a look whether it is ours: what it copies is never undone."""
    with pipeline.open() as opened:
        return adopt(pipeline, opened.ledger, opened.identity, opened.require_watermark())


def _copier(
    pipeline: Pipeline, known: PipelineIdentity, on_progress: OnProgress, stop: Stop | None
) -> Copier:
    return Copier(
        pipeline,
        epoch=known.epoch,
        publication=known.publication,
        on_progress=on_progress,
        stop=stop,
    )
