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
    from pgstream_dagster.assets.names import PgstreamTranslator
    from pgstream_dagster.build import build_definitions
    from pgstream_dagster.capture.stream import stream
    from pgstream_dagster.config.section import Section, Variable
    from pgstream_dagster.copy.snapshot import snapshot
    from pgstream_dagster.errors import PgstreamError
    from pgstream_dagster.lsn import Lsn
    from pgstream_dagster.modifiers import Modifiers
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.readers.change import Change, ChangeBatch
    from pgstream_dagster.resources.lake import DeltaLake
    from pgstream_dagster.resources.postgres import PostgresSource
    from pgstream_dagster.resources.search import SearchCluster
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
    from pgstream_dagster.sinks.envelope import Envelope, json_schema
    from pgstream_dagster.sinks.message import Message, Messages
    from pgstream_dagster.stop import Cancelled, Stop
    from pgstream_dagster.tables.approval import HeldTable, approve_tables, held_tables
    from pgstream_dagster.tables.column_changes import read_column_changes
    from pgstream_dagster.tables.history.as_of import read_as_of
    from pgstream_dagster.tables.merge import merge_tables
    from pgstream_dagster.tables.passes import Merged, MergedTable
    from pgstream_dagster.tables.read import TableRows, read_changes, read_table
    from pgstream_dagster.tables.read_typed import TypedRows, read_typed
    from pgstream_dagster.tables.run import run_tables
    from pgstream_dagster.tables.schema_history import SchemaVersion, schema_history
    from pgstream_dagster.upkeep.reconcile import reconcile
    from pgstream_dagster.upkeep.reconcile_sink import reconcile_sink
    from pgstream_dagster.upkeep.resnapshot import resnapshot
    from pgstream_dagster.upkeep.setup import setup
    from pgstream_dagster.upkeep.status import status

__all__ = [
    "Cancelled",
    "Change",
    "ChangeBatch",
    "DeltaLake",
    "Envelope",
    "HeldTable",
    "Lsn",
    "Merged",
    "MergedTable",
    "Message",
    "Messages",
    "Modifiers",
    "NotNow",
    "PgstreamError",
    "PgstreamTranslator",
    "Pipeline",
    "PostgresSource",
    "Refused",
    "SchemaVersion",
    "SearchCluster",
    "Section",
    "Sink",
    "SinkContext",
    "Stop",
    "TableRows",
    "TypedRows",
    "Variable",
    "Verdict",
    "Verdicts",
    "__version__",
    "approve_tables",
    "build_definitions",
    "deliver_each",
    "errors",
    "held_tables",
    "json_schema",
    "merge_tables",
    "read_as_of",
    "read_changes",
    "read_column_changes",
    "read_table",
    "read_typed",
    "reconcile",
    "reconcile_sink",
    "reindex",
    "resnapshot",
    "run_tables",
    "schema_history",
    "setup",
    "snapshot",
    "status",
    "stream",
]

__version__: Final = metadata.version("pgstream-dagster")

_MODULES: Final = {
    "Cancelled": "stop",
    "Change": "readers.change",
    "ChangeBatch": "readers.change",
    "DeltaLake": "resources.lake",
    "Envelope": "sinks.envelope",
    "HeldTable": "tables.approval",
    "Lsn": "lsn",
    "Merged": "tables.passes",
    "MergedTable": "tables.passes",
    "Message": "sinks.message",
    "Messages": "sinks.message",
    "Modifiers": "modifiers",
    "NotNow": "sinks.base",
    "PgstreamError": "errors",
    "PgstreamTranslator": "assets.names",
    "Pipeline": "pipeline",
    "PostgresSource": "resources.postgres",
    "Refused": "sinks.base",
    "SchemaVersion": "tables.schema_history",
    "SearchCluster": "resources.search",
    "Section": "config.section",
    "Sink": "sinks.base",
    "SinkContext": "sinks.base",
    "Stop": "stop",
    "TableRows": "tables.read",
    "TypedRows": "tables.read_typed",
    "Variable": "config.section",
    "Verdict": "sinks.base",
    "Verdicts": "sinks.base",
    "approve_tables": "tables.approval",
    "build_definitions": "build",
    "deliver_each": "sinks.base",
    "held_tables": "tables.approval",
    "json_schema": "sinks.envelope",
    "merge_tables": "tables.merge",
    "read_as_of": "tables.history.as_of",
    "read_changes": "tables.read",
    "read_column_changes": "tables.column_changes",
    "read_table": "tables.read",
    "read_typed": "tables.read_typed",
    "reconcile": "upkeep.reconcile",
    "reconcile_sink": "upkeep.reconcile_sink",
    "reindex": "search.reindex",
    "resnapshot": "upkeep.resnapshot",
    "run_tables": "tables.run",
    "schema_history": "tables.schema_history",
    "setup": "upkeep.setup",
    "snapshot": "copy.snapshot",
    "status": "upkeep.status",
    "stream": "capture.stream",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module(f"{__name__}.errors")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
