"""Everything that `setup` needs, looked at and left as it is: source, folders, search cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pgstream_dagster.delta import uri
from pgstream_dagster.errors import MissingSetting, PgstreamError, SlotForeign
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.runtime.java import java_home
from pgstream_dagster.search import generations, grants
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.control import CONTROL
from pgstream_dagster.source import slot
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.preflight import Finding, Severity
from pgstream_dagster.source.prepare import inspect
from pgstream_dagster.upkeep.setup import NO_RECORD


def check(pipeline: Pipeline) -> list[Finding]:
    """What a `setup` would find, errors first. Starts no JVM, makes and changes nothing."""
    findings = [*_source(pipeline), *_machine(pipeline), *_search(pipeline)]
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _source(pipeline: Pipeline) -> list[Finding]:
    try:
        with closing(connect(pipeline.dsn)) as session:
            findings = inspect(pipeline, session)
            name = pipeline.config.source.slot
            if slot.inspect(session, name) is not None and not pipeline.lake.is_made:
                unknown = SlotForeign(name, NO_RECORD)
                findings.append(_error("slot_name", unknown))
            return findings
    except PgstreamError as error:
        return [_error("connection", error)]


def _machine(pipeline: Pipeline) -> Iterator[Finding]:
    """The two folders that we write to, and a Java."""
    folders = {"lake": uri.local(pipeline.lake.address), "state": pipeline.state}
    for what, folder in folders.items():
        if folder is not None and (reason := unwritable(folder)) is not None:
            yield Finding(
                what,
                Severity.ERROR,
                f"the folder of PGSTREAM_{what.upper()}, {str(folder)!r}, cannot be written to:"
                f" {reason}",
                "name another folder, or let this user write there",
            )
    try:
        java_home()
    except PgstreamError as error:
        yield _error("java", error)


def unwritable(folder: Path) -> str | None:
    """Why nothing can be made in `folder`, there or not; `None`: it can."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        return f"{there} is no folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"no right to write in {there}"


def _search(pipeline: Pipeline) -> Iterator[Finding]:
    """Whether the cluster answers, our aliases are free, and our user may do what we do."""
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
    except PgstreamError as error:
        yield _error("search", error)
        return
    if lacking:
        yield Finding(
            "search_right",
            Severity.ERROR,
            f"the user of the search cluster lacks {', '.join(lacking)}",
            "give it the role that 'pgstream grants --search elasticsearch' prints",
        )


def _error(check: str, error: PgstreamError) -> Finding:
    return Finding(check, Severity.ERROR, str(error))
