"""Checks everything that `setup` needs, and changes nothing: source, folders, search cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pgstream_dagster.config.named_tables import named_tables
from pgstream_dagster.delta import uri
from pgstream_dagster.errors import (
    ConfigError,
    MissingSetting,
    PgstreamError,
    SinkError,
    SlotForeign,
    TopicCompacted,
)
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.runtime.java import java_home
from pgstream_dagster.search import generations, grants
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.control import CONTROL
from pgstream_dagster.source import slot
from pgstream_dagster.source.connect import Session, connect
from pgstream_dagster.source.preflight import Finding, Severity, by_severity, error, preflight
from pgstream_dagster.upkeep.fitting import require_fitting_source


def check(pipeline: Pipeline) -> list[Finding]:
    """The findings of a `setup`, errors first. Starts no JVM, creates and changes nothing."""
    return by_severity([*_source(pipeline), *_machine(pipeline), *_search(pipeline)])


def _source(pipeline: Pipeline) -> list[Finding]:
    if pipeline.config.source.kafka is not None:
        return _kafka(pipeline)
    try:
        with closing(connect(pipeline.dsn)) as session:
            source = pipeline.config.source
            findings = preflight(session, source, named_tables(pipeline.config))
            is_ready = all(finding.severity is not Severity.ERROR for finding in findings)
            if is_ready and not pipeline.lake.is_made:
                findings += _modifiers(pipeline, session)
            if slot.inspect(session, source.slot) is not None and not pipeline.lake.is_made:
                foreign = SlotForeign(source.slot, slot.NO_RECORD)
                findings.append(error("slot_name", str(foreign)))
            return findings
    except PgstreamError as problem:
        return [error("connection", str(problem))]


def _modifiers(pipeline: Pipeline, session: Session) -> list[Finding]:
    """Why `setup` would refuse the modifiers of the source."""
    try:
        require_fitting_source(pipeline.source_rules(), session, pipeline.config.source)
    except (ConfigError, SinkError) as problem:
        return [error("modifiers", str(problem))]
    return []


def _kafka(pipeline: Pipeline) -> list[Finding]:
    from pgstream_dagster.consumer.positions import unfit_topics

    try:
        missing, compacted = unfit_topics(pipeline)
    except PgstreamError as problem:
        return [error("connection", str(problem))]
    remedy = "start the sink that writes it, with 'schemas_topic', or correct source.kafka"
    return [
        *(error("topic", f"there is no topic {topic!r}", remedy) for topic in missing),
        *(error("topic", str(TopicCompacted(topic))) for topic in compacted),
    ]


def _machine(pipeline: Pipeline) -> Iterator[Finding]:
    """The two folders that we write to, and a Java."""
    folders = {"lake": uri.local(pipeline.lake.uri), "state": pipeline.state}
    for what, folder in folders.items():
        if folder is not None and (reason := unwritable(folder)) is not None:
            yield error(
                what,
                f"the folder of PGSTREAM_{what.upper()}, {str(folder)!r}, cannot be written to:"
                f" {reason}",
                "name another folder, or let this user write there",
            )
    try:
        java_home()
    except PgstreamError as problem:
        yield error("java", str(problem))


def unwritable(folder: Path) -> str | None:
    """Why nothing can be made in `folder`, which need not exist; `None`: it can."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        return f"{existing} is no folder"
    return None if os.access(existing, os.W_OK | os.X_OK) else f"no right to write in {existing}"


def _search(pipeline: Pipeline) -> Iterator[Finding]:
    """Whether the cluster answers, our aliases are free, and our user has the rights we need."""
    aliases = list(pipeline.config.search)
    if not aliases:
        return
    try:
        if pipeline.search is None:
            raise MissingSetting("PGSTREAM_SEARCH_URL", "the search cluster's address")
        with closing(Cluster(pipeline.search)) as cluster:
            cluster.exists(CONTROL)
            for alias in aliases:
                generations.live(cluster, alias)
            lacking = grants.lacking(cluster, aliases)
    except PgstreamError as problem:
        yield error("search", str(problem))
        return
    if lacking:
        yield error(
            "search_right",
            f"the user of the search cluster lacks {', '.join(lacking)}",
            "give it the role that 'pgstream grants --search elasticsearch' prints",
        )
