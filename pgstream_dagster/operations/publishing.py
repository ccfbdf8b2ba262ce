"""The source made ready: checked, and with a publication that is up to date."""

from __future__ import annotations

import logging

from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.preflight import Severity, preflight, require
from pgstream_dagster.source import publication
from pgstream_dagster.source.snapshot import Session

logger = logging.getLogger(__name__)


def publish(pipeline: Pipeline, session: Session) -> None:
    """
    Check the source, then make the publication or bring it up to date.

    Raises:
        PreflightFailed: the source is not ready.
    """
    source = pipeline.config.source
    findings = preflight(
        session, slot=source.slot, publication=source.publication, tables=source.tables
    )
    require(findings)
    for finding in findings:
        is_risk = finding.severity is Severity.WARNING
        logger.log(logging.WARNING if is_risk else logging.INFO, "%s", finding)
    publication.ensure(session, source.publication, source.tables)
