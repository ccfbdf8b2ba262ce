"""Copies outside of setup: tables chosen by a person, and relations that the stream requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
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

    Readers start these tables again from the copy. Waits while another process copies.

    Raises:
        NotSetUp: `setup` was never run.
        OtherSystem, TimelineForked, SourceBehind, SourceRestored: the log is of something else.
        NoSuchTable: the publication has no such table.
        PgstreamError: a table could not be copied; the others are.
        Cancelled: asked to stop; what was under way is not in the log.
    """
    pipeline.require_postgres("snapshot")
    _require_published(pipeline, tables, stop or Stop())
    with (
        pipeline.open() as opened,
        only_copier(pipeline, wait=True, on_progress=on_progress, stop=stop),
        _copier(opened, on_progress, stop) as copier,
    ):
        listed = copier.tables()
        by_name = {table.full_name: table.relation_id for table in listed}
        _require_named(tables, by_name, opened.identity.publication)  # one may be gone by now
        return copier.copy([by_name[canonical(name)] for name in tables], listed=listed)


def _require_published(pipeline: Pipeline, tables: Sequence[str], stop: Stop) -> None:
    """Refuse a misspelt name before a JVM starts."""
    pipeline.require_set_up()
    publication = pipeline.config.source.publication
    names = {table.full_name for table in published_now(pipeline.dsn, publication, stop)}
    _require_named(tables, names, publication)


def _require_named(tables: Sequence[str], names: Collection[str], publication: str) -> None:
    for name in tables:
        if canonical(name) not in names:
            raise NoSuchTable(name, publication)


def copy_relations(
    pipeline: Pipeline,
    relation_ids: Collection[int],
    *,
    on_progress: OnProgress = silent,
    stop: Stop | None = None,
) -> list[Copied]:
    """
    Copy these relations from a new snapshot; for a thread of the process that streams.

    Raises:
        CopyRunning: another process copies tables of this pipeline.
        PgstreamError: a table could not be copied; the others are.
        Cancelled: asked to stop; what was under way is not in the log.
    """
    with (
        pipeline.open() as opened,
        only_copier(pipeline, wait=False, on_progress=silent, stop=stop),
        _copier(opened, on_progress, stop) as copier,
    ):
        return copier.copy(relation_ids)


def _copier(opened: OpenPipeline, on_progress: OnProgress, stop: Stop | None) -> Copier:
    """A copier of the source, checked to be ours: a copy is never undone."""
    pipeline, ledger, watermark = opened.pipeline, opened.ledger, opened.require_watermark()
    identity = adopt(pipeline, ledger, opened.identity, watermark)
    return Copier(
        pipeline,
        ledger,
        opened.log,
        epoch=identity.epoch,
        publication=identity.publication,
        on_progress=on_progress,
        stop=stop,
    )
