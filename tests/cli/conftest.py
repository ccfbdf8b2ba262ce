"""A place to use `pgstream` from: a folder, a database, an environment."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pgstream_dagster.capture.stream import stream
from pgstream_dagster.cli import run
from pgstream_dagster.pipeline import Pipeline
from tests.support.plugins.cluster import psql


class Shell:
    """Runs `pgstream` in this process (one JVM for all tests) or, to be signalled, in another."""

    def __init__(self, folder: Path, dsn: str, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.dsn, self._capture = folder, dsn, capture
        self.secrets: list[str] = []  # what no command may print
        self.slot = f"shop_{secrets.token_hex(4)}"  # slots are the server's, not the database's
        (folder / "pgstream.yaml").write_text(
            f"pipeline: shop\nsource: {{slot: {self.slot}, tables: [orders, visits]}}\n"
        )
        (folder / ".env").write_text("")
        self.set(DSN=dsn, LAKE="./lake")

    def set(self, **variables: str) -> None:
        """Add variables to `.env`, by their names without PGSTREAM_; the last value counts."""
        with (self.folder / ".env").open("a") as file:
            file.writelines(f"PGSTREAM_{name}={value}\n" for name, value in variables.items())

    def pgstream(self, *arguments: str, code: int = 0) -> str:
        """What the command printed; fails unless it exits with `code`."""
        self._capture.readouterr()
        ended = run.run(arguments)
        printed = self._capture.readouterr()
        assert ended == code, printed.err
        assert not [secret for secret in self.secrets if secret in printed.out + printed.err]
        self.errors = printed.err
        return printed.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.pgstream(*arguments, "--json", code=code))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "pgstream_dagster.cli", *arguments],
            cwd=self.folder,
            env={**os.environ, "PGSTREAM_JVM_HEAP": "800m"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """A stream in a thread of this process."""
        stop, pipeline = threading.Event(), Pipeline.from_file(Path("pgstream.yaml"), os.environ)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(stream, pipeline, stop=stop)
            try:
                yield
            finally:
                stop.set()
            running.result()

    def heartbeat_file(self) -> dict[str, Any]:
        """The latest heartbeat of the stream; empty before the first."""
        file = self.folder / ".state" / "shop.stream.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def confirmed(self) -> str | None:
        rows = psql(
            self.dsn,
            "select confirmed_flush_lsn::text from pg_replication_slots"
            f" where slot_name = '{self.slot}'",
        )
        return rows[0][0] if rows else None


@pytest.fixture
def shell(dsn, tmp_path, monkeypatch, capfd, gateway) -> Shell:
    """An empty site; its variables come from `.env` and are gone after the test."""
    monkeypatch.chdir(tmp_path)
    for name in ("PGSTREAM_DSN", "PGSTREAM_LAKE"):
        monkeypatch.setenv(name, "")  # so that what .env brings is taken back at the end
        monkeypatch.delenv(name)
    for name in ("PGSTREAM_STATE", "PGSTREAM_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    psql(
        dsn,
        "create table orders (id bigint primary key, note text)",
        "insert into orders select i, 'note ' || i from generate_series(1, 100) i",
        "create table visits (who text)",
        "alter table visits replica identity full",
        "insert into visits values ('a'), ('a'), ('b')",
    )
    return Shell(tmp_path, dsn, capfd)
