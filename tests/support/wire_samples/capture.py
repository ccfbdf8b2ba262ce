"""
Capture real pgoutput bytes: `python -m tests.support.wire_samples.capture [MAJOR...]`.

Runs `tables.sql`, `workload.sql` and some large transactions on an embedded Postgres while two
walsenders send, one with protocol 1, one with protocol 2 and `streaming 'on'`, and writes
`pg<major>.json.gz` beside this file: the messages of both (hex, without the XLogData header), the
rows that the tables have in the end, as their output functions print them, and the tables' keys.
"""

from __future__ import annotations

import gzip
import json
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import pq

from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import connect, replication

FOLDER: Final = Path(__file__).parent
SETTINGS: Final = {"logical_decoding_work_mem": "64kB", "wal_writer_delay": "10ms"}
OPTIONS: Final = {
    "1": "proto_version '1'",
    "2": "proto_version '2', streaming 'on'",
}
WAIT_SECONDS: Final = 30

LARGE: Final = "insert into large select i, 'row ' || i from generate_series({0}, {1}) i"


def main(majors: list[int]) -> None:
    for major in majors:
        with Postgres(major, settings=SETTINGS) as server:
            captured = json.dumps(capture(server.dsn), ensure_ascii=False, indent=0)
        path = FOLDER / f"pg{major}.json.gz"
        path.write_bytes(gzip.compress(captured.encode(), mtime=0))
        sys.stdout.write(f"{path.name}: {path.stat().st_size:,} bytes\n")


def capture(dsn: str) -> dict[str, Any]:
    """The messages of the workload, by protocol, and what the tables look like afterwards."""
    with connect(dsn) as sql:
        _run(sql, "set search_path = public")
        _run(sql, (FOLDER / "tables.sql").read_text())
        senders = {version: Sender(dsn, version) for version in OPTIONS}
        try:
            _run(sql, (FOLDER / "workload.sql").read_text())
            _large_transactions(dsn, sql, senders["2"])
            end = Lsn.parse(_value(sql, "select pg_current_wal_flush_lsn()::text"))
            messages = {version: sender.until(end) for version, sender in senders.items()}
        finally:
            for sender in senders.values():
                sender.close()
        return {
            "server": _value(sql, "select version()"),
            "messages": {v: [message.hex() for message in m] for v, m in messages.items()},
            "tables": list(_tables(sql)),
        }


def _large_transactions(dsn: str, sql: psycopg.Connection[Any], streamed: Sender) -> None:
    """
    Streamed ones: committed with an aborted part, rolled back, and small ones in between.

    A part is rolled back only after the walsender streamed of it: later servers leave out what
    they know to be aborted.
    """
    with connect(dsn) as other:
        _run(sql, "begin; " + LARGE.format(1, 900))
        streamed.await_stream()
        _run(other, "insert into public.plain (id) values (201)")
        _run(sql, "savepoint s; alter table large add gone text; " + LARGE.format(2001, 2800))
        streamed.await_stream()
        _run(sql, "rollback to s; alter table large add b text default 'd'")
        _run(sql, "update large set a = 'ä' || id where id <= 300; delete from large where id = 7")
        _run(sql, "select pg_logical_emit_message(true, 'note', 'in a stream')")
        _run(sql, "savepoint s2; insert into plain (id) values (202); release s2")
        _run(sql, "truncate emptied")
        _run(sql, "commit")
        _run(other, "insert into public.large values (5000, null, 'after')")
        _run(sql, "begin; " + LARGE.format(3001, 3900).replace("' || i", "' || i, 'x'"))
        streamed.await_stream()
        _run(sql, "rollback")
        _run(other, "delete from public.plain where id = 201")


def _run(sql: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split(";"):
        sql.execute(statement.encode())


def _value(sql: psycopg.Connection[Any], query: str) -> str:
    row = sql.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])


def _tables(sql: psycopg.Connection[Any]) -> Iterator[dict[str, Any]]:
    """Name, identity, key columns and rows of every published table."""
    described = sql.execute((FOLDER / "described.sql").read_bytes()).fetchall()
    for oid, name, key in described:
        result = sql.execute(f"select * from {name}".encode()).pgresult
        assert result is not None
        names = [(result.fname(at) or b"").decode() for at in range(result.nfields)]
        rows = [
            [_text(result, row, at) for at in range(len(names))] for row in range(result.ntuples)
        ]
        yield {"relation_id": oid, "name": name, "key": key, "columns": names, "rows": rows}


def _text(result: pq.abc.PGresult, row: int, column: int) -> str | None:
    value = result.get_value(row, column)
    return None if value is None else bytes(value).decode()


class Sender:
    """A walsender's messages, as they come."""

    def __init__(self, dsn: str, version: str) -> None:
        with connect(dsn) as sql:
            sql.execute(
                "select pg_create_logical_replication_slot(%s, 'pgoutput')", [f"capture_{version}"]
            )
        self._connection = replication(dsn)
        self._messages: list[bytes] = []
        options = f"{OPTIONS[version]}, publication_names 'everything', messages 'true'"
        start = f"START_REPLICATION SLOT capture_{version} LOGICAL 0/0 ({options})"
        result = self._connection.exec_(start.encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message

    def await_stream(self) -> None:
        """Until one more streamed block has ended."""
        while self._next()[:1] != b"E":
            pass

    def until(self, end: Lsn) -> list[bytes]:
        """Every message up to position `end`."""
        while self._sent < end:
            self._next()
        return self._messages

    _sent = Lsn(0)

    def _next(self) -> bytes:
        """The next message; empty for a keepalive."""
        while True:
            size, data = self._connection.get_copy_data(1)
            if size == 0:
                if not select.select([self._connection.socket], [], [], WAIT_SECONDS)[0]:
                    raise TimeoutError("the walsender is silent")
                self._connection.consume_input()
                continue
            assert size > 0, self._connection.error_message
            raw = bytes(data)
            if raw[:1] == b"k":
                self._sent = Lsn(int.from_bytes(raw[1:9]))
                return b""
            self._messages.append(raw[25:])
            return raw[25:]

    def close(self) -> None:
        self._connection.finish()


if __name__ == "__main__":
    main([int(major) for major in sys.argv[1:]] or [15, 18])
