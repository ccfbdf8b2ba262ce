"""The rows of the source and those the log folds to, compared in quiet by the reference fold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg
import pyarrow.parquet as pq
from psycopg import sql

from pgstream_dagster.schema.table import TableSchema
from tests.support.harness import oracle
from tests.support.reference import fold
from tests.support.reference.change import Change

Rows: TypeAlias = Counter[tuple[tuple[str, str | None], ...]]
"""Whole rows as text, and how often each is there."""


PINNED: Final = (
    "set timezone = 'UTC'",
    "set search_path = ''",
    "set datestyle = 'ISO'",
    "set intervalstyle = 'postgres'",
    "set extra_float_digits = 1",
    "set bytea_output = 'hex'",
)
"""What shapes text, for every session that reads tables or a slot here."""


def of_source(dsn: str, tables: Sequence[str]) -> dict[int, tuple[str, Rows]]:
    """Relation oid -> its name and rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        oids = {  # before the search path is pinned
            oid: table
            for table in tables
            for (oid,) in connection.execute("select %s::regclass::oid::int8", [table])
        }
        return {oid: (table, _of_table(connection, oid)) for oid, table in oids.items()}


def of_table(dsn: str, oid: int) -> Rows:
    """The rows of a relation."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return _of_table(connection, oid)


def _of_table(connection: psycopg.Connection[Any], oid: int) -> Rows:
    """Whole rows: what the output functions give, as libpq receives it; generated columns not."""
    for statement in PINNED:
        connection.execute(statement)
    [(relation,)] = connection.execute("select %s::oid::regclass::text", [oid]).fetchall()
    columns = [
        name
        for (name,) in connection.execute(
            "select attname::text from pg_attribute where attrelid = %s and attnum > 0"
            " and not attisdropped and attgenerated = '' order by attnum",
            [oid],
        )
    ]
    query = sql.SQL("select {} from {}").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(relation)
    )
    result = connection.pgconn.exec_(query.as_bytes(connection))
    assert not result.error_message, result.error_message

    def text(row: int, column: int) -> str | None:
        value = result.get_value(row, column)
        return None if value is None else bytes(value).decode()

    return Counter(
        fold.entries({name: text(row, place) for place, name in enumerate(columns)})
        for row in range(result.ntuples)
    )


Read: TypeAlias = Callable[[Path, str], Iterable[Change]]
"""The changes in one file of a table."""


def of_log(
    change_log: Path, schema_log: Path, *, epoch: int = 1, read: Read = oracle.rows
) -> dict[int, Rows]:
    """
    Relation oid -> the rows that all of the log's changes fold to.

    A keyed fold hides a change that is there twice, so each position must be there once.
    """
    changes: dict[int, list[Change]] = {}
    for file in active_files(change_log):
        for change in read(change_log, file):
            if change.relation_id is not None and change.position.epoch == epoch:
                changes.setdefault(change.relation_id, []).append(change)
    for of_one in changes.values():
        assert_each_position_once(of_one)
    versions = schemas(schema_log)
    return {
        oid: Counter(
            fold.entries(row.image) for row in fold.fold(of_one, in_order(of_one, versions))
        )
        for oid, of_one in changes.items()
    }


def assert_each_position_once(of_one: Sequence[Change]) -> None:
    """Of one relation: copies of two have the same positions."""
    times = Counter(change.position for change in of_one)
    doubled = [oracle.brief(c) for c in of_one if times[c.position] > 1]
    assert not doubled, f"{len(doubled)} changes are in the log more than once: {doubled[:4]}"


def active_files(table: Path) -> list[str]:
    """The files of the newest version of a Delta table."""
    files: dict[str, None] = {}
    for entry in oracle.entries(table):
        for removed in entry.removed:
            files.pop(removed, None)
        files.update(dict.fromkeys(entry.added))
    return list(files)


def schemas(schema_log: Path) -> Mapping[int, TableSchema]:
    """Every version that schema_log holds."""
    versions: dict[int, TableSchema] = {}
    for file in active_files(schema_log):
        for row in pq.read_table(schema_log / file, partitioning=None).to_pylist():
            schema = TableSchema.from_json(row["schema"])
            assert schema.schema_id == row["schema_id"]
            versions[schema.schema_id] = schema
    return versions


def in_order(changes: Sequence[Change], versions: Mapping[int, TableSchema]) -> list[TableSchema]:
    """The versions that these changes name; the last is that of the last change."""
    ids: dict[int, None] = {}
    for change in sorted(changes, key=lambda change: change.position):
        if change.schema_id is not None:
            ids.pop(change.schema_id, None)
            ids[change.schema_id] = None
    unknown = ids.keys() - versions.keys()
    assert not unknown, f"changes name schemas {unknown} that schema_log does not hold"
    return [versions[schema_id] for schema_id in ids]


def assert_log_folds_to_source(pipeline: Any, tables: Sequence[str], *, epoch: int = 1) -> int:
    """Compare all rows of quiet tables, value by value; the number of rows."""
    folded = of_log(
        oracle.folder_of(pipeline.lake.change_log),
        oracle.folder_of(pipeline.lake.schema_log),
        epoch=epoch,
    )
    total = 0
    for oid, (table, rows) in of_source(pipeline.dsn, tables).items():
        log = folded.get(oid, Counter())
        missing, extra = rows - log, log - rows
        assert not missing and not extra, (
            f"{table}: {missing.total():,} of {rows.total():,} rows are missing in the fold, e.g."
            f" {_shown(missing)}; {extra.total():,} are too many, e.g. {_shown(extra)}"
        )
        total += rows.total()
    return total


def _shown(rows: Rows) -> list[str]:
    return [
        str({name: value if value is None else value[:40] for name, value in row})
        for row in list(rows)[:3]
    ]
