"""One scenario of many statements: run them, wait until all is quiet, read the source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from pgstream_dagster.capture.due import due_copies, requested_copies
from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.config import CaptureConfig
from pgstream_dagster.delta import jvm
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.publication import published
from tests.support.harness import oracle, runner
from tests.support.plugins.wait import until

SETTLE_SECONDS = 180.0
"""For the stream and the copies of new tables to get there, on a busy machine."""

CAPTURE = CaptureConfig(flush_seconds=0.2, idle_advance_seconds=1, catalog_check_seconds=1)

Row = dict[str, str | None]


def run(dsn: str, statements: Sequence[str]) -> None:
    """In one session, each statement (or several in one string) as one simple query."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(cast("LiteralString", statement))


def settle(pipeline: Pipeline, check: Any) -> None:
    """Until all that is committed is in the log and no table waits for a copy."""
    target = runner.flushed(pipeline.dsn)
    folder, app = runner.change_log(pipeline), runner.app(pipeline)

    def is_landed() -> bool:
        check()
        return max(oracle.watermarks(folder, app)) >= target

    with (
        closing(Ledger(pipeline.lake, jvm.gateway(pipeline.jvm))) as ledger,
        closing(connect(pipeline.dsn)) as session,
    ):

        def is_copied() -> bool:
            check()
            tables = published(session, pipeline.config.source.publication)
            return not due_copies(tables, ledger.copies(1), requested_copies(ledger, 1))

        until(is_landed, seconds=SETTLE_SECONDS, every=0.2)
        until(is_copied, seconds=SETTLE_SECONDS, every=0.5)


def source_rows(connection: psycopg.Connection[Any], name: str) -> tuple[int, list[Row]]:
    """A table's oid and its rows: what the output functions give, as libpq receives it."""
    [(oid, namespace, relation)] = connection.execute(
        "select c.oid::int8, n.nspname::text, c.relname::text from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace where c.oid = %s::regclass",
        [name],
    ).fetchall()
    # Only 18 can publish generated columns.
    generated = ["", "s"] if connection.info.server_version >= 180000 else [""]
    columns = [
        column
        for (column,) in connection.execute(
            "select attname::text from pg_attribute where attrelid = %s and attnum > 0"
            ' and not attisdropped and attgenerated = any(%s::"char"[]) order by attnum',
            [oid, generated],
        )
    ]
    query = sql.SQL("select {} from {}").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(namespace, relation)
    )
    result = connection.pgconn.exec_(query.as_bytes(connection))
    assert result.ntuples >= 0 and not result.error_message, result.error_message

    def text(row: int, column: int) -> str | None:
        value = result.get_value(row, column)
        return None if value is None else bytes(value).decode()

    return oid, [
        {column: text(row, place) for place, column in enumerate(columns)}
        for row in range(result.ntuples)
    ]
