"""What went wrong with RabbitMQ, as our errors: by class and AMQP's reply code. Pure."""

from __future__ import annotations

from typing import Final

from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from pgstream_dagster.errors import SinkError, SinkRefused, SinkUnreachable

ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
NOT_ALLOWED: Final = 530
"""The virtual host does not exist, or is not for this user (AMQP 0-9-1, reply codes)."""

OF_PLACE: Final = frozenset({ACCESS_REFUSED, NOT_FOUND})
"""A channel ends so for an exchange that does not exist, or is not for this user."""

_LOGIN: Final = (AuthenticationError, ProbableAuthenticationError, ProbableAccessDeniedError)


def named(sink: str, error: BaseException) -> SinkError:
    """The error of ours for one of the client; no text has a password."""
    section = f"sinks.{sink}.rabbitmq"
    if isinstance(error, _LOGIN) or _code(error) in {ACCESS_REFUSED, NOT_ALLOWED}:
        remedy = f"check the variable that {section}.url_from names, and the user's rights"
        return SinkRefused(sink, _text(error), remedy)
    if isinstance(error, ChannelClosedByBroker):
        remedy = f"create it, or add 'declare: true' to {section}"
        if error.reply_code == PRECONDITION_FAILED:
            remedy = f"correct {section}, or delete what was declared otherwise"
        return SinkRefused(sink, error.reply_text, remedy)
    return SinkUnreachable(sink, _text(error))


def _code(error: BaseException) -> int | None:
    closed = (ChannelClosedByBroker, ConnectionClosedByBroker)
    return error.reply_code if isinstance(error, closed) else None


def _text(error: BaseException) -> str:
    if isinstance(error, ChannelClosedByBroker | ConnectionClosedByBroker):
        return error.reply_text
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    inner = error.args[0] if isinstance(error, AMQPError) and error.args else error
    return str(inner) or type(inner).__name__
