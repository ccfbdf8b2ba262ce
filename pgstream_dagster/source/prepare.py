"""The source made ready: checked, and with a publication that is up to date."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TypedDict

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source import publication
from pgstream_dagster.source.preflight import (
    Facts,
    Finding,
    Severity,
    look,
    preflight,
    require,
    unfit_findings,
)
from pgstream_dagster.source.publication import Tables
from pgstream_dagster.source.snapshot import Session

logger = logging.getLogger(__name__)


def publish(pipeline: Pipeline, session: Session) -> None:
    """
    Check the source, then make the publication or bring it up to date.

    Raises:
        PreflightFailed: the source is not ready.
    """
    source = pipeline.config.source
    findings = inspect(pipeline, session)
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


def inspect(pipeline: Pipeline, session: Session) -> list[Finding]:
    """What `preflight` finds for this pipeline."""
    return preflight(session, **_asked(pipeline))


def unfit_tables(
    pipeline: Pipeline, session: Session, captured: Collection[int] = ()
) -> tuple[str, ...]:
    """
    What keeps tables from being captured whole now: a sentence for each, with what helps.

    Shape:
        captured: the relations that the log has.
    """
    findings = unfit_findings(session, **_asked(pipeline), captured=captured)
    return tuple(str(finding) for finding in findings)


def facts(pipeline: Pipeline, session: Session) -> Facts:
    """What findings and grants are made from."""
    return look(session, **_asked(pipeline))


def _asked(pipeline: Pipeline) -> _Asked:
    source = pipeline.config.source
    return {
        "slot": source.slot,
        "publication": source.publication,
        "tables": source.tables,
        "exclude": source.exclude,
    }


class _Asked(TypedDict):
    slot: str
    publication: str
    tables: Tables
    exclude: Sequence[str]
