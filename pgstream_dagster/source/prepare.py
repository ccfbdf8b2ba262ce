"""Prepares the source: checked, with an up-to-date publication, and its DDL reported."""

from __future__ import annotations

import logging
from collections.abc import Collection

from pgstream_dagster.config.named_tables import named_tables
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source import publication, schema_triggers
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.preflight import Severity, preflight, require, unfit_findings

logger = logging.getLogger(__name__)


def publish(pipeline: Pipeline, session: Session) -> None:
    """
    Check the source, then make the publication and the event triggers or bring them up to date.

    Without the right to make event triggers all else is done.

    Raises:
        PreflightFailed: the source is not ready.
        AccessRefused: event triggers that should go were installed by another role.
    """
    source = pipeline.config.source
    findings = preflight(session, source, named_tables(pipeline.config))
    require(findings)
    for finding in findings:
        is_risk = finding.severity is Severity.WARNING
        logger.log(logging.WARNING if is_risk else logging.INFO, "%s", finding)
    publication.ensure(
        session,
        source.publication,
        source.tables,
        exclude=source.exclude,
        left_out={finding.leaves_out for finding in findings if finding.leaves_out is not None},
    )
    if not source.schema_triggers:
        schema_triggers.remove(session, source.slot)
    elif reason := schema_triggers.install(session, source.slot).reason:
        logger.info("event triggers that report DDL: %s", reason)


def unfit_tables(
    pipeline: Pipeline, session: Session, captured: Collection[int]
) -> tuple[str, ...]:
    """
    What keeps tables from being captured whole now: a sentence for each, with what helps.

    Shape:
        captured: the relations that the log has.
    """
    return tuple(map(str, unfit_findings(session, pipeline.config.source, captured)))
