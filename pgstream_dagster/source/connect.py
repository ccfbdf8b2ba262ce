"""
Connections to the source: settings that shape text are pinned on all of them, errors have names.

The stream (walsender) and the copy (ordinary sessions) must print the same text for a value, so
both get the same settings. They go into the startup packet: there they override ALTER ROLE and
ALTER DATABASE, and a walsender has them before it decodes its first row. They are set once more
when the session is open, after any login trigger. Nothing here keeps a connection, reads the
environment (libpq does, for what the DSN leaves out) or repeats a secret.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgstream_dagster.errors import (
    AccessRefused,
    ConnectionLost,
    InvalidDsn,
    LocksHeld,
    QueryCancelled,
    ReadOnlyServer,
    SourceError,
    SourceExhausted,
    Unreachable,
)

T = TypeVar("T")


class Session(psycopg.Connection[tuple[Any, ...]]):
    """An ordinary session; `role` is the one it acts as, which the login may have set."""

    role = ""

    @property
    def server(self) -> str:
        """`host:port/database`, for messages; never a secret."""
        return _server_of(self.pgconn)


APPLICATION: Final = "pgstream"
"""What pg_stat_activity shows unless the caller gives another name."""

PINNED: Final[dict[str, str]] = {
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",  # shortest text that reads back as the same float
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "quote_all_identifiers": "off",  # shapes format_type and pg_get_expr, so schema_log
    "search_path": "",  # regclass is printed qualified, and no user's object hides a built-in
    "row_security": "off",  # a policy that would hide rows is an error, never a shorter copy
    "client_min_messages": "notice",  # 18 only warns of a missing publication
    "exit_on_error": "off",  # an error must not look like a lost connection
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",  # we create a publication
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",  # a copy takes as long as it takes
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",  # the guard of a copy waits for its tasks
    "idle_session_timeout": "0",
}
"""Settings of all our sessions."""

ENCODING: Final = "UTF8"
"""What all our sessions send and receive."""

PINNED_FROM: Final[dict[str, tuple[int, str]]] = {
    "transaction_timeout": (170000, "0"),  # would end the guard of a long copy
}
"""Settings that only newer servers know (an unknown one in the startup packet is refused)."""

NETWORK: Final[dict[str, str]] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # ms; a peer that vanished without RST is noticed after a minute
}
"""Defaults for what the DSN leaves out; without them a wait on a half-open socket takes hours."""

TOO_MANY: Final = re.compile(
    'too many|remaining connection slots|is reserved for|exceeds "?max_wal_senders'
)
"""SQLSTATE 53300 as text: libpq gives no SQLSTATE for a connection that was not made. On a server
with translated messages it counts as a refusal."""

DATABASE: Final = re.compile(r'database ".*" (does not exist|is not)')
"""SQLSTATE 3D000 as text, for the same reason."""

CREDENTIALS: Final = (
    "check the user and password in PGSTREAM_DSN (or PGUSER, PGPASSWORD), and login event triggers"
)

DENIED: Final = re.compile("permission denied for (table|schema) (.+)")

GONE: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""SQLSTATEs after which the server ends the session; class 08 as well."""


NAMED: Final[dict[str, Callable[[str, str], SourceError]]] = {
    "57014": QueryCancelled,
    "40P01": LocksHeld,
    "55P03": LocksHeld,
    "53000": SourceExhausted,
    "53100": SourceExhausted,  # disk
    "53200": SourceExhausted,  # memory
    "53300": SourceExhausted,  # connections
    "25006": ReadOnlyServer,
}
"""What a SQLSTATE means, whatever the query was.

Source:
    https://www.postgresql.org/docs/current/errcodes-appendix.html
"""


def connect(dsn: str, *, application_name: str = APPLICATION) -> Session:
    """
    An ordinary session with the `PINNED` settings, in autocommit mode; the caller closes it.

    Raises:
        InvalidDsn, Unreachable, AccessRefused
    """
    conninfo = _conninfo(dsn, application_name=application_name)
    connection = _opened(dsn, conninfo, lambda: Session.connect(conninfo, autocommit=True))
    connection.role = _pin_again(connection.pgconn)
    return connection


def replication(dsn: str, *, application_name: str = APPLICATION) -> pq.abc.PGconn:
    """
    A walsender session (`replication=database`) with the same settings, in blocking mode.

    It takes replication commands and plain SQL, one at a time (`command`). The caller makes it
    non-blocking before it streams, and ends it with `finish()`.

    Raises:
        InvalidDsn, Unreachable, AccessRefused
    Source:
        https://www.postgresql.org/docs/current/protocol-replication.html
    """
    conninfo = _conninfo(dsn, application_name=application_name, replication="database")

    def attempt() -> pq.abc.PGconn:
        # Not PQconnectdb: psycopg calls that under the GIL, and every thread of ours would wait.
        connection = psycopg.connect(conninfo, autocommit=True)
        pgconn = connection.pgconn
        del connection.pgconn  # the caller's now; psycopg would warn of one that it still has
        pgconn.nonblocking = 0
        return pgconn

    pgconn = _opened(dsn, conninfo, attempt)
    _pin_again(pgconn)
    return pgconn


def command(pgconn: pq.abc.PGconn, text: str) -> list[dict[str, str | None]]:
    """
    Run one replication command (or SQL) on a walsender session; its rows, values as text.

    Waits with the interpreter awake, so Ctrl-C ends even a CREATE_REPLICATION_SLOT that waits for
    running transactions.

    Raises:
        ConnectionLost: the session ended.
        psycopg.Error: the server refused the command; its `sqlstate` says why.
    """
    try:
        pgconn.send_query(text.encode())
        result = _last_result(pgconn)
    except psycopg.OperationalError as error:
        raise ConnectionLost(_server_of(pgconn), _reason(str(error))) from error
    if result.status == pq.ExecStatus.FATAL_ERROR:
        error = psycopg.errors.error_from_result(result, encoding="utf-8")
        if (named := _named(pgconn, error)) is None:
            raise error
        raise named from error
    names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
    return [
        {name: _text(result.get_value(row, i)) for i, name in enumerate(names)}
        for row in range(result.ntuples)
    ]


def server(dsn: str) -> str:
    """`host:port/database` of a DSN, as libpq would fill it in; for messages, never a secret."""
    parts = _parsed(dsn)
    host = parts.get("host") or parts.get("hostaddr") or "local socket"
    return f"{host}:{parts.get('port') or '5432'}/{parts.get('dbname') or parts.get('user') or ''}"


@contextmanager
def named_errors(connection: Session, table: str | None = None) -> Generator[None]:
    """
    Name the errors of `connection` inside: the session was lost, or a reason in `NAMED`.

    Any other error passes unchanged. `table`: what is read, as SQL; servers report its bare name.
    """
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        where, reason = _server_of(connection.pgconn), error.diag.message_primary
        reason = reason or "permission denied"
        raise AccessRefused(where, reason, _missing_right(connection, reason, table)) from error
    except psycopg.Error as error:
        if (named := _named(connection.pgconn, error)) is None:
            raise
        raise named from error


def _named(pgconn: pq.abc.PGconn, error: psycopg.Error) -> SourceError | None:
    """The named error for the server's answer to a query, if there is one."""
    where = _server_of(pgconn)
    if _is_gone(pgconn, error.sqlstate):
        return ConnectionLost(where, _reason(str(error)))
    named = NAMED.get(error.sqlstate or "")
    return (
        None if named is None else named(where, error.diag.message_primary or _reason(str(error)))
    )


def _missing_right(connection: Session, reason: str, table: str | None) -> str:
    """The statement that grants a right, where the server says which one is missing."""
    role = quoted(connection.role)
    match DENIED.fullmatch(reason):
        case re.Match() as denied if denied[1] == "table":
            return f"run grant select on {table or denied[2]} to {role}"
        case re.Match() as denied:
            return f"run grant usage on schema {denied[2]} to {role}"
        case _:
            return "'pgstream check' names the statements for what is missing"


def quoted(text: str) -> str:
    """`text` as a quoted identifier, for a replication command, which takes no parameters."""
    return sql.Identifier(text).as_string(None)


def _opened(dsn: str, conninfo: str, attempt: Callable[[], T]) -> T:
    """
    Connect; a failure is named by what helps.

    libpq does not report the SQLSTATE of a refused connection. PQping distinguishes "no server, or
    not ready" from "it answers"; one that answers is tried once more, since it may just have become
    ready between the two.
    """
    try:
        return attempt()
    except psycopg.OperationalError as error:
        # The ping would take as long once more, and hold up every thread (it keeps the GIL). Of
        # several hosts it is asked: the last may be silent, and another have refused the role.
        is_silent = isinstance(error, psycopg.errors.ConnectionTimeout)
        if (is_silent and _has_one_host(conninfo)) or not _answers(conninfo):
            raise Unreachable(server(dsn), _reason(str(error))) from error
    try:
        return attempt()
    except psycopg.OperationalError as error:
        reason = _reason(str(error))
        if not _answers(conninfo) or TOO_MANY.search(reason) or _wants_another_host(conninfo):
            raise Unreachable(server(dsn), reason) from error
        database = DATABASE.search(reason)
        remedy = "check dbname in PGSTREAM_DSN (or PGDATABASE)" if database else CREDENTIALS
        raise AccessRefused(server(dsn), reason, remedy) from error


def _answers(conninfo: str) -> bool:
    return pq.PGconn.ping(conninfo.encode()) == pq.Ping.OK


def _has_one_host(conninfo: str) -> bool:
    return "," not in str(_parsed(conninfo).get("host") or "")


def _wants_another_host(conninfo: str) -> bool:
    """Whether a host lets the role in but is not of the right kind: no primary, in a failover."""
    if _parsed(conninfo).get("target_session_attrs", "any") == "any":
        return False
    try:
        psycopg.connect(make_conninfo(conninfo, target_session_attrs="any")).close()
    except psycopg.OperationalError:
        return False
    return True


def _conninfo(dsn: str, **ours: str) -> str:
    """The DSN, with our defaults for what it leaves out, and our pins above what it says."""
    explicit = _explicit(dsn)
    # libpq takes PGOPTIONS only when no `options` are given: keep what the user set there.
    options = explicit.get("options") or _defaults().get("options")
    pins = " ".join(f"-c {name}={_escaped(value)}" for name, value in PINNED.items())
    return make_conninfo(
        **{
            **NETWORK,
            **explicit,
            "options": f"{options} {pins}" if options else pins,
            "client_encoding": ENCODING,
            **ours,
        }
    )


def _escaped(value: str) -> str:
    """A value inside `options`, where blanks separate unless a backslash precedes them."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _explicit(dsn: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # Not chained and not quoted: libpq repeats what it could not read, maybe a password.
        raise InvalidDsn from None


def _defaults() -> dict[str, str]:
    """What libpq takes from PG* variables and its own defaults."""
    return {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }


def _parsed(dsn: str) -> dict[str, Any]:
    return {**_defaults(), **_explicit(dsn)}


def _pin_again(pgconn: pq.abc.PGconn) -> str:
    """
    Pin what the startup packet could not, in one query that trusts no `search_path`; the role.

    From 17 on an event trigger on login may set anything, in a walsender too. libpq sends PGTZ and
    PGDATESTYLE as parameters of their own, which the server applies after `options`; and
    `PINNED_FROM` depends on the server's version.

    Source:
        https://www.postgresql.org/docs/current/event-trigger-definition.html
    """
    pins = {**PINNED, "client_encoding": ENCODING}
    for name, (version, value) in PINNED_FROM.items():
        if pgconn.server_version >= version:
            pins[name] = value
    calls = (f"pg_catalog.set_config('{n}', {sql.quote(v)}, false)" for n, v in pins.items())
    [row] = command(pgconn, f"select {', '.join(calls)}, current_user as role")
    return row["role"] or ""


def _last_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult:
    """The result of the command just sent; the first failed one where there are several."""
    waiting = select.poll()
    waiting.register(pgconn.socket, select.POLLIN)
    results: list[pq.abc.PGresult] = []
    while True:
        while pgconn.is_busy():
            waiting.poll()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            break
        results.append(result)
    if not results:
        raise psycopg.OperationalError(pgconn.get_error_message())
    failed = (r for r in results if r.status == pq.ExecStatus.FATAL_ERROR)
    return next(failed, results[-1])


def _is_gone(pgconn: pq.abc.PGconn, sqlstate: str | None) -> bool:
    if pgconn.status != pq.ConnStatus.OK:
        return True
    return sqlstate is not None and (sqlstate in GONE or sqlstate.startswith("08"))


def _server_of(pgconn: pq.abc.PGconn) -> str:
    """As `server`, for a connection; one that is finished no longer has its address."""
    try:
        host, port, database = pgconn.host, pgconn.port, pgconn.db
    except psycopg.OperationalError:
        return "the source"
    return f"{host.decode() or 'local socket'}:{port.decode()}/{database.decode()}"


def _reason(text: str) -> str:
    """The server's or libpq's message, without the address that ours has already."""
    last = text.strip().splitlines()[0] if text.strip() else "the connection was closed"
    return last.rpartition("failed: ")[2].removeprefix("FATAL:").removeprefix("ERROR:").strip()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
