"""
Stream Postgres into a Delta Lake change log, and from there into search indices and sinks.

These names are the public API; everything else may move. They are imported when they are used:
importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgstream_dagster import errors as errors
    from pgstream_dagster.capture.stream import stream
    from pgstream_dagster.config.section import Section, Variable
    from pgstream_dagster.copy.snapshot import snapshot
    from pgstream_dagster.errors import PgstreamError
    from pgstream_dagster.lsn import Lsn
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.readers.change import Change, ChangeBatch
    from pgstream_dagster.search.reindex import reindex
    from pgstream_dagster.sinks.base import (
        NotNow,
        Refused,
        Sink,
        SinkContext,
        Verdict,
        Verdicts,
        deliver_each,
    )
    from pgstream_dagster.sinks.envelope import Envelope
    from pgstream_dagster.tables.read import TableRows, read_changes, read_table
    from pgstream_dagster.upkeep.reconcile import reconcile
    from pgstream_dagster.upkeep.reconcile_sink import reconcile_sink
    from pgstream_dagster.upkeep.resnapshot import resnapshot
    from pgstream_dagster.upkeep.setup import setup
    from pgstream_dagster.upkeep.status import status

__all__ = [
    "Change",
    "ChangeBatch",
    "Envelope",
    "Lsn",
    "NotNow",
    "PgstreamError",
    "Pipeline",
    "Refused",
    "Section",
    "Sink",
    "SinkContext",
    "TableRows",
    "Variable",
    "Verdict",
    "Verdicts",
    "__version__",
    "deliver_each",
    "read_changes",
    "read_table",
    "reconcile",
    "reconcile_sink",
    "reindex",
    "resnapshot",
    "setup",
    "snapshot",
    "status",
    "stream",
]

__version__: Final = metadata.version("pgstream-dagster")

_MODULES: Final = {
    "Change": "readers.change",
    "ChangeBatch": "readers.change",
    "Envelope": "sinks.envelope",
    "Lsn": "lsn",
    "NotNow": "sinks.base",
    "PgstreamError": "errors",
    "Pipeline": "pipeline",
    "Refused": "sinks.base",
    "Section": "config.section",
    "Sink": "sinks.base",
    "SinkContext": "sinks.base",
    "TableRows": "tables.read",
    "Variable": "config.section",
    "Verdict": "sinks.base",
    "Verdicts": "sinks.base",
    "deliver_each": "sinks.base",
    "read_changes": "tables.read",
    "read_table": "tables.read",
    "reconcile": "upkeep.reconcile",
    "reconcile_sink": "upkeep.reconcile_sink",
    "reindex": "search.reindex",
    "resnapshot": "upkeep.resnapshot",
    "setup": "upkeep.setup",
    "snapshot": "copy.snapshot",
    "status": "upkeep.status",
    "stream": "capture.stream",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
