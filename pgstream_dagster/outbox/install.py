"""
Install, upgrade and remove the outbox; each is one transaction, and only one runs at a time.

Every file of `sql/outbox/` in `OBJECTS` may run again on what it has made before, so an upgrade is
the statements of the versions between, then all objects again, then a repair of what is generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.errors import (
    AccessRefused,
    OutboxMissing,
    OutboxNewer,
    OutboxOccupied,
    OutboxOutdated,
)
from pgstream_dagster.source.connect import Session, named_errors
from pgstream_dagster.source.query import query, run, run_text
from pgstream_dagster.sql import statement

VERSION: Final = 2
"""Of the objects below; higher with each change of them."""

UPGRADES: Final[Mapping[int, tuple[str, ...]]] = {2: ("to_version_2",)}
"""Statements to run before the objects, by the version that needs them: what `create or replace`
cannot do, such as new columns."""

OBJECTS: Final = (
    *("schema", "home", "outbox_version", "operation_type", "uuid_v7", "deep_merge"),
    *("streams", "events", "events_default", "event_days", "outbox_sinks", "subscriptions"),
    *(
        "expression_error",
        "named_columns",
        "absent_column",
        "virtual_columns",
        "check_expression",
        "check_extensions",
        "table_columns",
        "check_table",
    ),
    *("check_columns", "check_definition", "rename_columns", "rename_extensions", "followed"),
    *("before_subscription", "follow", "object_code", "image_code", "picked", "extension_fields"),
    *("wrapped_fields", "value_codes", "payload_code", "metadata_code", "careful_code"),
    *(
        "fast_code",
        "timing_of",
        "in_force",
        "row_image",
        "failure",
        "insert_code",
        "capture_code",
        "condition_code",
        "lock_table",
    ),
    *("write_function", "rebuild", "one_writer", "after_subscriptions", "subscription_triggers"),
    *(
        "subscription",
        "set_subscriptions",
        "unused_functions",
        "problem_of",
        "repair",
        "after_ddl",
    ),
)
"""Files of `sql/outbox/`, in the order in which they need each other."""

PUBLIC: Final = ("pgstream.uuid_v7(", "pgstream.deep_merge(")
"""What an application calls that inserts events of its own; all else acts as the owner."""

RIGHTS: Final = (
    "the role must be able to create schema pgstream: run 'grant create on database <database> to"
    " <role>', or create schema pgstream authorization <role>"
)


@dataclass(frozen=True, slots=True)
class Installed:
    """
    The outbox after `install` or `upgrade`; `former_version` is `None` where there was none.

    Without event triggers, subscriptions do not follow by themselves when a table or column is
    renamed or dropped: `check` reports it.
    """

    version: int
    former_version: int | None
    has_event_triggers: bool


@dataclass(frozen=True, slots=True)
class _State:
    version: int | None
    foreign_tables: tuple[str, ...]
    is_superuser: bool
    has_event_triggers: bool


def install(session: Session) -> Installed:
    """
    Install the outbox; one that is there already stays as it is.

    Raises:
        OutboxOccupied: schema pgstream has tables of postgres-stream.
        OutboxOutdated, OutboxNewer: it is there in another version.
        AccessRefused: the role may not create the schema, or another role owns it.
    """
    with session.transaction():
        state = _locked_state(session)
        if state.version is None:
            if state.foreign_tables:
                raise OutboxOccupied(session.server, state.foreign_tables)
            _create(session)
        _require_version(session, state.version)
        has_event_triggers = state.has_event_triggers or _add_event_triggers(session, state)
    return Installed(VERSION, state.version, has_event_triggers)


def upgrade(session: Session) -> Installed:
    """
    Bring the outbox to this version, and repair what is generated.

    Raises:
        OutboxMissing, OutboxNewer, AccessRefused
    """
    with session.transaction():
        state = _locked_state(session)
        if state.version is None:
            raise OutboxMissing(session.server)
        if state.version > VERSION:
            raise OutboxNewer(session.server, state.version, VERSION)
        for version in range(state.version + 1, VERSION + 1):
            for name in UPGRADES.get(version, ()):
                run(session, f"outbox/{name}")
        _create(session)
        query(session, "outbox/run_repair")
        has_event_triggers = _add_event_triggers(session, state) or state.has_event_triggers
    return Installed(VERSION, state.version, has_event_triggers)


def uninstall(session: Session) -> bool:
    """
    Remove the outbox with all events and subscriptions; whether there was one.

    The schema goes too, unless something else is in it.

    Raises:
        AccessRefused: event triggers are there, and the role is no superuser.
        LocksHeld: a subscribed table is in use; nothing was removed.
    """
    with session.transaction():
        state = _locked_state(session)
        if state.version is None:
            return False
        if state.has_event_triggers:
            run(session, "outbox/drop_event_triggers")
        run(session, "outbox/drop_triggers")
        functions = _functions(session)
        run(session, "outbox/drop_tables")
        for function in functions:
            run_text(session, f"drop function if exists {function} cascade")
        run(session, "outbox/drop_schema")
    return True


def require_installed(session: Session) -> None:
    """
    Refuse a source whose outbox is missing or of another version.

    Raises:
        OutboxMissing, OutboxOutdated, OutboxNewer
    """
    version = installed_version(session)
    if version is None:
        raise OutboxMissing(session.server)
    _require_version(session, version)


def installed_version(session: Session) -> int | None:
    """The version of the outbox; `None` where there is none."""
    [(is_there,)] = query(session, "outbox/is_installed")
    if not is_there:
        return None
    [(version,)] = query(session, "outbox/version")
    return int(version)


def _require_version(session: Session, version: int | None) -> None:
    if version is not None and version < VERSION:
        raise OutboxOutdated(session.server, version, VERSION)
    if version is not None and version > VERSION:
        raise OutboxNewer(session.server, version, VERSION)


def _locked_state(session: Session) -> _State:
    query(session, "outbox/install_lock")
    [facts] = query(session, "outbox/state")
    foreign, is_superuser, has_event_triggers, role, other_owner = facts
    if other_owner is not None:  # who could put functions of their own into it
        reason = f"schema pgstream belongs to role {other_owner!r}, not to {role!r}"
        remedy = f'run it as that role, or run: alter schema pgstream owner to "{role}"'
        raise AccessRefused(session.server, reason, remedy)
    version = installed_version(session)
    return _State(version, tuple(foreign), is_superuser, has_event_triggers)


def _create(session: Session) -> None:
    has_own_uuids = session.info.server_version >= 180000
    try:
        for name in OBJECTS:
            is_emulated = name == "uuid_v7" and not has_own_uuids
            run(session, f"outbox/{'uuid_v7_before_18' if is_emulated else name}")
        for function in _functions(session):
            if not function.startswith(PUBLIC):
                run_text(session, f"revoke all on function {function} from public")
        with named_errors(session):
            session.execute(statement("outbox/record_version"), {"version": VERSION})
    except AccessRefused as error:
        raise AccessRefused(error.server, error.reason, RIGHTS) from error


def _add_event_triggers(session: Session, state: _State) -> bool:
    if state.is_superuser:
        run(session, "outbox/event_triggers")
    return state.is_superuser


def _functions(session: Session) -> list[str]:
    """The functions of the outbox, as SQL names them."""
    return [name for (name,) in query(session, "outbox/functions", names=list(OBJECTS))]
