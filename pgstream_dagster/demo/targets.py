"""The targets of a demo's sinks: a private Kafka, a second database, and a webhook receiver."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from pgstream_dagster import settings
from pgstream_dagster.demo.receiver import PREFIX, Event, Receiver
from pgstream_dagster.embedded.kafka import Kafka

MASKED: Final = "masked"
"""The second database, on the source's own server: to a sink, it is any other Postgres."""

ANY_RECEIVER: Final = "http://127.0.0.1:0/"
"""Stands for the receiver's address in the pipeline files."""

SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Targets:
    """Where the sinks deliver; `variables` are those that the pipeline file names."""

    servers: str  # of Kafka
    receiver: Receiver
    masked_dsn: str
    variables: Mapping[str, str]

    def write_pipeline(self, template: Path, file: Path) -> None:
        """Write the pipeline file, with the address of the receiver."""
        text = template.read_text(encoding="utf-8")
        file.write_text(text.replace(ANY_RECEIVER, self.receiver.url), encoding="utf-8")


@contextmanager
def targets(dsn: str, on_event: Callable[[Event], object]) -> Generator[Targets]:
    """
    Start them, and end them with the block; `dsn` is that of the source.

    Raises:
        ServerNotStarted
    """
    secret = PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create database {MASKED}".encode())
    masked_dsn = make_conninfo(dsn, dbname=MASKED)
    with Kafka() as kafka, Receiver(secret, on_event) as receiver:
        variables = {
            "DEMO_KAFKA": kafka.servers,
            "DEMO_MASKED_DSN": masked_dsn,
            "DEMO_WEBHOOK_SECRET": secret,
            settings.MODIFIER_KEY: secrets.token_hex(SECRET_BYTES),
        }
        yield Targets(kafka.servers, receiver, masked_dsn, variables)
