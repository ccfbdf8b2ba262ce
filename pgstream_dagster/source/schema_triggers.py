"""
The event triggers on the source that report DDL in the stream: install, remove, inspect them.

`sql/schema` has the objects, `schema.ddl` what they report. Version and readers are kept in the
comment on an event trigger, which survives a crash of the server; the table is unlogged. Each
operation is one transaction and only one runs at a time; no DDL of the application waits for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from psycopg import sql

from pgstream_dagster.errors import AccessRefused, LocksHeld, ReadOnlyServer
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import Session, named_errors, quoted
from pgstream_dagster.source.query import lsn, query, query_all, run, run_text
from pgstream_dagster.sql import statement

VERSION: Final = 1
"""Of the objects below; higher with each change of them."""

UPGRADES: Final[Mapping[int, tuple[str, ...]]] = {}
"""Statements to run before the objects, by the version that needs them: what `create or replace`
cannot do, such as new columns."""

FUNCTIONS: Final = (
    *("ddl_token", "ddl_publications", "ddl_types", "ddl_columns", "ddl_table", "ddl_affected"),
    *("ddl_after_command", "ddl_after_drop", "ddl_schema", "ddl_log", "ddl_xid", "ddl_emit"),
    *("ddl_report", "ddl_trigger"),
)
"""Files of `sql/schema`, a function each, in the order in which they need each other."""

AGAIN: Final = "run 'pgstream setup' again"

AS_SUPERUSER: Final = (
    "run 'pgstream setup' once with PGSTREAM_DSN of a superuser (or of a role that your provider"
    " lets create event triggers)"
)


@dataclass(frozen=True, slots=True)
class Installed:
    """
    What is there after `install`.

    `version` is `None` where nothing is. `reason`: what is missing, with the statement that helps;
    empty when all is done.
    """

    version: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """
    The event triggers as the catalog has them.

    Equal `versions` at two times mean that nothing of them was changed between, nor disabled and
    enabled again. `obstacle`: why the role cannot install them, as far as the catalog says.
    """

    is_installed: bool
    is_enabled: bool  # both of them, whatever session_replication_role is
    version: int | None
    readers: tuple[str, ...]  # slots of the pipelines that use them
    token: int | None  # the large object of the secret that reports carry
    digest: str  # of that secret
    versions: tuple[int, ...]
    obstacle: str

    @property
    def fires(self) -> bool:
        """Whether every DDL is reported now."""
        return self.is_installed and self.is_enabled

    def wrote(self, token: str) -> bool:
        """Whether a report with this token is of our event triggers."""
        return hashlib.sha256(token.encode()).hexdigest() == self.digest

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to install: all is there, enabled, in our version or later."""
        return self.fires and self.version is not None and self.version >= VERSION


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """Versions of the source's schema_log; all are landed once the watermark is at `lsn`."""

    versions: tuple[int, ...]
    lsn: Lsn


class _Record(msgspec.Struct, frozen=True):
    """The comment on the event trigger `pgstream_schema_ddl`."""

    version: int
    readers: tuple[str, ...] = ()
    token: int | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class _Facts:
    """One row of `schema/state`."""

    record: str | None
    is_enabled: bool
    versions: list[int]
    missing: list[str]
    has_other_log: bool
    owner: str | None
    role: str
    is_superuser: bool
    may_create: bool
    database: str
    is_standby: bool


def install(session: Session, slot: str) -> Installed:
    """
    Install the event triggers, or bring them to this version, and register their reader.

    Idempotent: what is whole is not touched, and a later version stays. Where the role may not,
    nothing is changed.
    """
    before = state(session)
    if before.is_current and slot in before.readers:
        return Installed(before.version)
    if before.obstacle:
        return Installed(before.version, before.obstacle)
    try:
        with session.transaction():
            query(session, "schema/install_lock")
            return Installed(_install(session, slot))
    except AccessRefused as error:
        return Installed(before.version, f"{error.reason}; {AS_SUPERUSER}")
    except ReadOnlyServer as error:
        return Installed(before.version, str(error))
    except LocksHeld as error:
        return Installed(before.version, f"{error}; {AGAIN}")


def remove(session: Session, slot: str) -> bool:
    """
    Unregister a reader; drop everything if no other one's slot exists. Whether it was dropped.

    Schema pgstream stays while something else is in it, such as the outbox.

    Raises:
        AccessRefused: another role installed them.
        LocksHeld: a transaction that ran DDL is still open; nothing was removed.
    """
    if slot not in state(session).readers:
        return False
    with session.transaction():
        query(session, "schema/install_lock")
        now = state(session)
        others = [name for name in now.readers if name != slot]
        used = query(session, "schema/existing_slots", slots=others)
        if used and now.version is not None:
            _record(session, now, now.version, [name for (name,) in used])
            return False
        run(session, "schema/drop_event_triggers")
        query(session, "schema/drop_token", token=now.token)
        for function in _functions(session):
            run_text(session, f"drop function {function}")
        run(session, "schema/drop_schema")
    return True


def state(session: Session) -> State:
    """The event triggers as the catalog has them; waits for nothing."""
    [facts] = query_all(session, _Facts, "schema/state", functions=list(FUNCTIONS))
    record = _recorded(facts.record)
    return State(
        is_installed=not facts.missing,
        is_enabled=facts.is_enabled,
        version=None if record is None else record.version,
        readers=() if record is None else record.readers,
        token=None if record is None else record.token,
        digest="" if record is None else record.digest,
        versions=tuple(facts.versions),
        obstacle=_obstacle(facts),
    )


def unacknowledged(session: Session) -> Unacknowledged:
    """What is not marked as landed; for `acknowledge`, once the watermark is far enough."""
    [(versions, text)] = query(session, "schema/unacknowledged")
    return Unacknowledged(tuple(versions), lsn(text))


def acknowledge(session: Session, seen: Unacknowledged, watermark: Lsn) -> bool:
    """
    Mark what was `seen` as landed, if the watermark says that it is; whether it is.

    Of what has landed the last 1,000 rows stay.
    """
    if watermark < seen.lsn:
        return False
    if seen.versions:
        with named_errors(session):
            values = {"versions": list(seen.versions)}
            session.execute(statement("schema/acknowledge"), values)
            session.execute(statement("schema/prune"))
    return True


def _install(session: Session, slot: str) -> int:
    """Under the lock; the version that is there afterwards."""
    now = state(session)
    version = now.version or 0
    if not now.is_current:
        if version <= VERSION:
            _create(session, now)
            version = VERSION
        else:  # a later version of ours: only what every version has
            run(session, "schema/enable_event_triggers")
    _record(session, now, version, [*now.readers, slot])
    return version


def _create(session: Session, now: State) -> None:
    for version in range((now.version or VERSION) + 1, VERSION + 1):
        for name in UPGRADES.get(version, ()):
            run(session, f"schema/{name}")
    if not query(session, "schema/has_schema"):
        run(session, "schema/create_schema")
    run(session, "schema/schema_log")
    for name in FUNCTIONS:
        run(session, f"schema/{name}")
    for function in _functions(session):
        run_text(session, f"revoke all on function {function} from public")
    run(session, "schema/event_triggers")


def _obstacle(facts: _Facts) -> str:
    """What of the catalog keeps the role from installing them; some servers refuse it later."""
    role = quoted(facts.role)
    if facts.is_standby:
        return "the server is a standby; let PGSTREAM_DSN name the primary"
    if facts.owner not in (None, facts.role):  # who could put functions of their own into it
        return (
            f"schema pgstream belongs to role {facts.owner!r}, not to {facts.role!r}; run alter"
            f" schema pgstream owner to {role}, or 'pgstream setup' once as that role"
        )
    if facts.has_other_log:
        return (
            "table pgstream.schema_log is of another product, or was set logged; run alter table"
            " pgstream.schema_log set unlogged if it is ours, else drop what that product left"
        )
    if facts.owner is None and not (facts.may_create or facts.is_superuser):
        return (
            f"role {facts.role!r} may not create schema pgstream; run grant create on database"
            f" {quoted(facts.database)} to {role}"
        )
    return ""


def _recorded(text: str | None) -> _Record | None:
    """What a comment says; version 0 if a person has changed it."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=_Record)
    except msgspec.DecodeError:
        return _Record(0)


def _record(session: Session, now: State, version: int, readers: Iterable[str]) -> None:
    """Write the comment; with another secret if there is none, or none that is readable."""
    token, digest = now.token, now.digest
    if not now.is_installed or token is None:
        query(session, "schema/drop_token", token=token)
        [(token, digest)] = query(session, "schema/make_token")
    record = _Record(version, tuple(sorted({*readers})), token, digest)
    text = json.dumps(msgspec.to_builtins(record))  # with the blanks that `ddl_token` looks for
    comment = sql.SQL("comment on event trigger pgstream_schema_ddl is {}")
    with named_errors(session):
        session.execute(comment.format(sql.Literal(text)))


def _functions(session: Session) -> list[str]:
    """Our functions, as SQL names them."""
    return [name for (name,) in query(session, "schema/functions", functions=list(FUNCTIONS))]
