"""An application that writes events of the outbox, and the events that it committed."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg

from pgstream_dagster.outbox.install import install
from pgstream_dagster.source.connect import connect
from tests.support.plugins.cluster import psql

GROUPS: Final = 4
"""One writer each, so that a group's numbers are its order."""

PAUSE_SECONDS: Final = 0.02

INSERT: Final = "insert into pgstream.events (stream_id, payload, metadata) values (%s, %s, %s)"


def with_outbox(dsn: str) -> None:
    """Install the outbox in a database, with streams 1 and 2."""
    with closing(connect(dsn)) as session:
        install(session)
    psql(dsn, "insert into pgstream.streams (id) values (1), (2)")


def write(dsn: str, *numbers: int, stream: int = 1, **metadata: Any) -> None:
    """Write events in one transaction, as an application does."""
    with psycopg.connect(dsn) as connection:
        for number in numbers:
            write_in(connection, number, stream, **metadata)


def write_in(
    connection: psycopg.Connection[Any], number: int, stream: int = 1, **metadata: Any
) -> None:
    """Write an event in an open transaction."""
    payload, routes = json.dumps({"n": number}), json.dumps(metadata) if metadata else None
    connection.execute(INSERT, (stream, payload, routes))


@contextmanager
def writing(dsn: str, pause_seconds: float = PAUSE_SECONDS) -> Iterator[None]:
    """Writers commit to streams 1 and 2, and roll back every fifth transaction."""
    stop = threading.Event()
    writers = [
        threading.Thread(target=_write, args=(dsn, group, stop, pause_seconds))
        for group in range(GROUPS)
    ]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def committed(dsn: str) -> dict[str, Any]:
    """The events of stream 1 in the table: id -> payload."""
    return dict(psql(dsn, "select id::text, payload from pgstream.events where stream_id = 1"))


def require_groups_in_order(payloads: list[Any]) -> None:
    """The numbers of each group rise, and nothing is of a transaction that rolled back."""
    assert not any(payload.get("undone") for payload in payloads)
    for group in range(GROUPS):
        numbers = [payload["n"] for payload in payloads if payload["group"] == group]
        assert numbers == sorted(set(numbers))


def _write(dsn: str, group: int, stop: threading.Event, pause_seconds: float) -> None:
    chance, number = random.Random(group), 0
    metadata = json.dumps({"group_id": str(group)})
    with psycopg.connect(dsn) as connection:
        while not stop.wait(pause_seconds):
            is_undone = chance.random() < 0.2
            for _ in range(chance.randint(1, 5)):
                number += 1
                payload = {"n": number, "group": group} | ({"undone": True} if is_undone else {})
                stream = 2 if chance.random() < 0.1 else 1
                connection.execute(INSERT, (stream, json.dumps(payload), metadata))
                stop.wait(chance.random() * 0.05)  # transactions overlap
            connection.rollback() if is_undone else connection.commit()
