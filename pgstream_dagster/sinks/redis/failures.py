"""What went wrong with Redis, as our errors: by the client's classes, never by text. Pure."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 - as the client calls it
    ExecAbortError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 - the same
    TryAgainError,
)

from pgstream_dagster.errors import SinkError, SinkRefused, SinkUnreachable

_LOGIN = (AuthenticationError, AuthenticationWrongNumberOfArgsError)
_OUTAGES = (
    *(BusyLoadingError, ConnectionError, TimeoutError, TryAgainError, ExecAbortError),
    *(OutOfMemoryError, ReadOnlyError),  # until consumers or a failover make room
)


def named(sink: str, error: RedisError) -> SinkError:
    """The error of ours for one of the client; its text has no password."""
    section = f"sinks.{sink}.redis"
    if isinstance(error, _LOGIN):
        return SinkRefused(sink, str(error), f"check the variable that {section}.url_from names")
    if isinstance(error, NoPermissionError):
        return SinkRefused(sink, str(error), "give the user the right with ACL SETUSER")
    if isinstance(error, _OUTAGES) or not isinstance(error, ResponseError):
        return SinkUnreachable(sink, str(error) or type(error).__name__)
    return SinkRefused(sink, str(error), f"correct {section}, or the server's settings")
