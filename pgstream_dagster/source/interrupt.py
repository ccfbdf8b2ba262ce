"""
Sessions that a stop or a limit ends, whatever they wait for on the server.

Our end of the socket is shut down, so the thread that waits on it continues at once even when the
server does not answer. The server is also asked to cancel the query: it notices a closed socket
only when it next writes to it, and a lock or an older transaction may prevent that for hours.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from typing import Final

import psycopg
from psycopg import pq

from pgstream_dagster.errors import ConnectionLost
from pgstream_dagster.source.connect import Session, connect
from pgstream_dagster.stop import Stop

ANSWER_SECONDS: Final = 60.0
"""In which the catalog must answer, as long as TCP waits for a peer that vanished."""


@contextmanager
def session(dsn: str, stop: Stop | None) -> Generator[Session]:
    """
    An ordinary session, closed at the end of the block; `stop` ends it.

    Raises:
        InvalidDsn, Unreachable, AccessRefused
        Cancelled: `stop` is set, before or meanwhile.
    """
    with closing(connect(dsn)) as connection, interruptible(connection.pgconn, stop):
        yield connection


def shut(connection: Session) -> None:
    """End our side of a session; a thread that waits for its server gets an error at once."""
    with (
        suppress(OSError, psycopg.Error),  # the server has closed it already
        socket.socket(fileno=os.dup(connection.pgconn.socket)) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)


@contextmanager
def limited(connection: Session, seconds: float) -> Generator[None]:
    """
    While the block runs, its queries must be answered: after `seconds` the session is ended.

    TCP notices a peer that vanished, but not a proxy that acknowledges what it then loses.

    Raises:
        ConnectionLost
    """
    began, limit = time.monotonic(), threading.Timer(seconds, shut, [connection])
    limit.daemon = True
    limit.start()
    try:
        yield
    except ConnectionLost as error:
        if time.monotonic() - began < seconds:
            raise
        raise ConnectionLost(error.server, f"no answer to a query for {seconds:.0f} s") from error
    finally:
        limit.cancel()


@contextmanager
def interruptible(pgconn: pq.abc.PGconn, stop: Stop | None) -> Generator[None]:
    """While the block runs, `stop` ends this session, which is then unusable."""
    if stop is None:
        yield
        return
    cancel = pgconn.get_cancel()
    # A descriptor of our own: closing the session meanwhile cannot make it another file's.
    with closing(socket.socket(fileno=os.dup(pgconn.socket))) as duplicate:

        def interrupt() -> None:
            with suppress(OSError):  # the server has closed it already
                duplicate.shutdown(socket.SHUT_RDWR)
            with suppress(psycopg.Error):  # it does not answer: nothing else can be done
                cancel.cancel()

        with stop.interrupts(interrupt):
            yield
