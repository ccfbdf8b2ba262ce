"""How DDL is seen: in order, by event triggers on the source, or only by its effects. No I/O."""

from __future__ import annotations

from typing import Final

from pgstream_dagster.config import SourceConfig
from pgstream_dagster.source.preflight.facts import Server
from pgstream_dagster.source.preflight.finding import Finding, note
from pgstream_dagster.source.schema_triggers import AS_SUPERUSER, State

NOT_PART: Final = "sequences and large objects are not part of the stream"

REPORTED: Final = f"event triggers report DDL in order with the changes of rows; {NOT_PART}"

WILL_BE: Final = (
    "'pgstream setup' will install event triggers, which report DDL in order with the changes of"
    f" rows; {NOT_PART}"
)

UNREPORTED: Final = (
    "a change of a table is seen when its next row changes, not before: DDL without later rows is"
    " missing in the log, and a column dropped and added again with the same name and type costs a"
    f" copy of the table; {NOT_PART}"
)


def ddl_finding(state: State, server: Server, source: SourceConfig) -> Finding:
    """A note: what is exact about DDL, and what would make it so."""
    if not source.schema_triggers:
        return note("ddl", UNREPORTED, "set source.schema_triggers to true in pgstream.yaml")
    if state.is_current:
        return note("ddl", REPORTED)
    if state.obstacle:
        return note("ddl", UNREPORTED, state.obstacle)
    if server.is_superuser:
        return note("ddl", WILL_BE)
    why = f"role {server.role!r} is no superuser, so it may install no event triggers on most"
    return note("ddl", UNREPORTED, f"{why} servers; {AS_SUPERUSER}")
