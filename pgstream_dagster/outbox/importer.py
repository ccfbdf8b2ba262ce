"""
Import the subscriptions of postgres-stream: from its database, or from a file of its table.

A subscription keeps its row id. What this outbox refuses, it refuses with a reason, one by one; the
others are imported. Running it again changes nothing that is there already.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from pgstream_dagster.errors import SubscriptionsUnreadable
from pgstream_dagster.outbox.install import require_installed
from pgstream_dagster.source.connect import Session, connect, server
from pgstream_dagster.source.query import query
from pgstream_dagster.sql import statement

REQUIRED: Final = ("id", "key", "stream_id", "operation", "schema_name", "table_name")

JSON_COLUMNS: Final = ("metadata", "payload_extensions", "metadata_extensions")


@dataclass(frozen=True, slots=True)
class Refused:
    """A subscription that was not imported, and why."""

    key: str
    table: str
    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """How many subscriptions are new, were there already with the same id, and were refused."""

    imported: int
    existing: int
    refused: tuple[Refused, ...]


def from_file(file: Path) -> list[dict[str, Any]]:
    """
    The rows of a file: a JSON array of objects, or CSV with a header.

    Raises:
        SubscriptionsUnreadable
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix == ".csv":
            return [_of_csv(row) for row in csv.DictReader(text.splitlines(keepends=True))]
        rows = json.loads(text)
    except (OSError, ValueError) as error:
        raise SubscriptionsUnreadable(str(file), str(error)) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SubscriptionsUnreadable(str(file), "it is no JSON array of objects")
    return rows


def from_database(dsn: str) -> list[dict[str, Any]]:
    """
    The rows of the table of postgres-stream in a database, in either of its places.

    Raises:
        SubscriptionsUnreadable, and what `connect` raises
    """
    with closing(connect(dsn)) as session:
        [(table,)] = query(session, "outbox/former_table")
        if table is None:
            raise SubscriptionsUnreadable(
                server(dsn),
                "there is no table pgstream_subscriptions.subscriptions, and no"
                " pgstream.subscriptions of that product",
            )
        name = "former_subscriptions" if table == "new" else "former_subscriptions_in_core"
        return [row for (row,) in query(session, f"outbox/{name}")]


def import_subscriptions(session: Session, rows: Sequence[Mapping[str, Any]]) -> Imported:
    """
    Add subscriptions, with their ids, and the streams that they name.

    Raises:
        OutboxMissing, OutboxOutdated, OutboxNewer, SubscriptionsUnreadable
    """
    require_installed(session)
    imported, existing, refused = 0, 0, list[Refused]()
    for row in rows:
        if missing := [name for name in REQUIRED if row.get(name) in (None, "")]:
            refused.append(_refused(row, f"it has no {', '.join(missing)}"))
            continue
        try:
            is_new = _add(session, row)
        except psycopg.Error as error:
            reason = error.diag.message_primary or str(error)
            refused.append(_refused(row, reason))
            continue
        imported, existing = imported + is_new, existing + (not is_new)
    return Imported(imported, existing, tuple(refused))


def _add(session: Session, row: Mapping[str, Any]) -> bool:
    values = {name: row.get(name) for name in (*REQUIRED, "when_clause", "column_names")}
    for name in JSON_COLUMNS:
        values[name] = None if row.get(name) is None else json.dumps(row[name])
    with session.transaction():
        session.execute(statement("outbox/import_stream"), {"id": row["stream_id"]})
        rows = session.execute(statement("outbox/import_subscription"), values).fetchall()
    return bool(rows)


def _refused(row: Mapping[str, Any], reason: str) -> Refused:
    table = f"{row.get('schema_name')}.{row.get('table_name')}"
    return Refused(str(row.get("key")), table, str(row.get("operation")), reason)


def _of_csv(row: Mapping[str, str]) -> dict[str, Any]:
    """A row of `COPY ... TO ... CSV HEADER`, where an empty field is NULL."""
    values: dict[str, Any] = {name: value or None for name, value in row.items()}
    for name in JSON_COLUMNS:
        if values.get(name) is not None:
            values[name] = json.loads(values[name])
    return values
