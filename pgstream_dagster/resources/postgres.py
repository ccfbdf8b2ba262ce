"""The source as a Dagster resource: how to reach it, and the life of its slot and publication."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import dagster as dg
import psycopg
from pydantic import Field

from pgstream_dagster import settings
from pgstream_dagster.source import slot
from pgstream_dagster.source.connect import connect, replication, server
from pgstream_dagster.source.slot import ExportedSlot, SlotState


class PostgresSource(dg.ConfigurableResource[Any]):
    """
    The Postgres that is read, and the API of a slot's life.

    Creating and dropping are calls of jobs (`setup`, `resnapshot`, `teardown`); the end of a run
    drops nothing. Nothing is opened before a call needs it.
    """

    dsn: str | None = Field(
        default=None,
        description="Connection string or URL; without it PGSTREAM_DSN or libpq's PG* variables, "
        "read when a run starts. Give an EnvVar: a literal would be shown.",
    )

    def address(self) -> str:
        """The connection string; holds secrets."""
        said = {settings.DSN: self.dsn} if self.dsn else os.environ
        return settings.dsn(said)

    def server(self) -> str:
        """`host:port/database`, for people."""
        return server(self.address())

    def inspect(self, name: str) -> SlotState | None:
        """What the server says of a slot; `None`: there is none."""
        with connect(self.address()) as connection:
            return slot.inspect(connection, name)

    @contextmanager
    def create(
        self, name: str, *, temporary: bool = False, failover: bool = False
    ) -> Generator[ExportedSlot]:
        """A new slot; the snapshot it exports lives until the end of the `with`."""
        session = replication(self.address())
        try:
            yield slot.create(session, name, temporary=temporary, failover=failover)
        finally:
            session.finish()

    def drop(self, name: str, *, missing_ok: bool = False) -> None:
        """Drop a slot: the WAL it held is gone with it."""
        with connect(self.address()) as connection:
            slot.drop(connection, name, missing_ok=missing_ok)

    def session(self) -> psycopg.Connection[tuple[Any, ...]]:
        """An ordinary session with our pinned settings; the caller closes it."""
        return connect(self.address())
