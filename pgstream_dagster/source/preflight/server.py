"""What the server's settings and the role's rights allow. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pgstream_dagster.source.preflight.facts import Server
from pgstream_dagster.source.preflight.finding import Finding, Severity, error, note, warning

SLOTS_NEEDED: Final = 2
"""The stream's, and a temporary one while a later copy takes its snapshot."""

SENDERS_NEEDED: Final = 3
"""The stream, the export of a snapshot, and the check of the system's identity."""


def server_findings(server: Server) -> Iterator[Finding]:
    """The server's settings and limits, and whether the role may replicate."""
    yield from _replication(server)
    yield from _room(server)
    yield from _encoding(server)
    yield from _slot_limits(server)
    if re.search(r'(?:^|[\s,("])\*', server.synchronous_names):
        yield warning(
            "synchronous",
            f"synchronous_standby_names is {server.synchronous_names!r}: the stream may count as a"
            " synchronous standby, and commits on the source would then wait for the lake",
            "name the standbys: run alter system set synchronous_standby_names = '<their names>'"
            " and select pg_reload_conf()",
        )


def old_version(server: Server) -> Finding:
    """The only finding about a server that is too old for the other queries."""
    return error(
        "version",
        f"the server is Postgres {server.version_text}; 15 is the oldest that works",
        "upgrade it",
    )


def _replication(server: Server) -> Iterator[Finding]:
    if server.is_standby:
        yield error(
            "standby",
            "the server is a standby: no publication can be made on it",
            "let PGSTREAM_DSN name the primary",
        )
    if server.wal_level != "logical":
        yield error(
            "wal_level",
            f"wal_level is {server.wal_level!r}: the WAL does not say which rows changed",
            "run alter system set wal_level = 'logical' and restart the server",
        )
    if server.output_plugins is not None and "pgoutput" not in server.output_plugins:
        yield error(
            "output_plugin",
            "output_plugin_libraries does not allow pgoutput",
            "run alter system set output_plugin_libraries = 'pgoutput, test_decoding' and"
            " select pg_reload_conf()",
        )
    if not server.may_replicate:
        yield error(
            "replication_right",
            f"role {server.role!r} may not replicate",
            f"run alter role {server.role_sql} replication",
        )


def _room(server: Server) -> Iterator[Finding]:
    """Free slots and walsenders; a slot that exists already needs no other."""
    slots = server.slots, server.slots_taken, SLOTS_NEEDED - server.has_slot
    senders = server.senders, server.senders_taken, SENDERS_NEEDED
    for check, setting, (limit, taken, needed) in (
        ("slots", "max_replication_slots", slots),
        ("senders", "max_wal_senders", senders),
    ):
        free = max(limit - taken, 0)
        if free < needed:
            yield Finding(
                check,
                Severity.WARNING if free >= needed - 1 else Severity.ERROR,
                f"{free} of {limit} are free under {setting}, {needed} are needed",
                f"run alter system set {setting} = {limit + needed - free} and restart the server",
            )


def _encoding(server: Server) -> Iterator[Finding]:
    if server.encoding == "SQL_ASCII":
        yield error(
            "encoding",
            "the database's encoding is SQL_ASCII: its bytes have no meaning as text",
            "create a database with encoding 'UTF8' and restore a dump of this one into it",
        )
    elif server.encoding != "UTF8":
        yield note(
            "encoding",
            f"the database's encoding is {server.encoding}: text is converted to UTF-8, and a"
            " character without a counterpart would stop the stream",
        )


def _slot_limits(server: Server) -> Iterator[Finding]:
    """How long the stream may be stopped before the disk is full, or the slot is lost."""
    if server.wal_keep_size == "-1":
        yield note(
            "wal_keep_size",
            "max_slot_wal_keep_size is unlimited: while the stream is stopped, WAL fills the"
            " source's disk",
            "watch 'pgstream status', or run alter system set max_slot_wal_keep_size = '<size>'"
            " and select pg_reload_conf() to lose the slot rather than the server",
        )
    else:
        yield warning(
            "wal_keep_size",
            f"max_slot_wal_keep_size is {server.wal_keep_size}: when the stream is stopped for"
            " more WAL than that, the slot is lost and every table has to be copied again",
            "size it for the longest stop you plan",
        )
    if server.idle_slot_timeout not in (None, "0"):
        yield warning(
            "idle_slot_timeout",
            f"idle_replication_slot_timeout is {server.idle_slot_timeout}: when no stream runs for"
            " that long, the slot is lost and every table has to be copied again",
            "run alter system set idle_replication_slot_timeout = 0 and select pg_reload_conf(),"
            " or stop the stream for less",
        )
