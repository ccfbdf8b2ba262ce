"""
Writes rows to a table of the target in sets: COPY for rows that are new, a staging table else.

Values go as the text that Postgres printed on the source, through COPY, so the target's input
functions read them. The staging table is temporary and is emptied at each commit.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from psycopg import sql

from pgstream_dagster.readers.change import Key
from pgstream_dagster.sinks.postgres.fold import Net, UpdatedRow, Values
from pgstream_dagster.sinks.postgres.target import OnConflict, TargetColumn, TargetTable
from pgstream_dagster.source.connect import Session

logger = logging.getLogger(__name__)

_COMMA: Final = sql.SQL(", ")


class RowsDiffer(Exception):
    """The target lacks rows that the changes are about, or has them more than once."""


class IdentityDiffers(Exception):
    """A change sets a column that the target generates always."""

    def __init__(self, column: str) -> None:
        self.column = column


class Writer:
    """
    Applies net effects within the session's transaction; the caller rolls back after an error.

    `passed` is the furthest value that was written to a column that owns a sequence.
    """

    def __init__(self, session: Session, on_conflict: OnConflict) -> None:
        self.passed: dict[str, tuple[int, bool]] = {}
        self._session, self._on_conflict = session, on_conflict
        self._used: set[str] = set()

    def begin(self) -> None:
        """A transaction begins: the staging tables are empty."""
        self._used.clear()
        self.passed.clear()

    def apply(self, net: Net, table: TargetTable, key: Sequence[str]) -> None:
        """
        Delete, update and insert rows of one table.

        Raises:
            RowsDiffer, IdentityDiffers
            psycopg.Error: the target's.
        """
        if net.deleted:
            self._delete(table, key, net.deleted)
        for (has_moved, names), rows in _by_shape(net.updated, table).items():
            is_whole = net.columns & table.by_name.keys() <= set(names)
            self._update(table, key, names, rows, has_moved=has_moved, is_whole=is_whole)
        for names, rows in _grouped(net.removed, table).items():
            self._remove(table, names, rows)
        for names, rows in _grouped(net.inserted, table).items():
            self._insert(table, key, names, rows)

    # --- new rows -----------------------------------------------------------------------------

    def _insert(
        self, table: TargetTable, key: Sequence[str], names: Sequence[str], rows: Sequence[Values]
    ) -> None:
        self._pass(table, names, rows)
        if not names:
            for _ in rows:
                self._run(sql.SQL("insert into {} default values").format(table.identifier))
            return
        lists = ([row[name] for name in names] for row in rows)
        if self._on_conflict == "error" or not key:
            self._copy(table.identifier, map(sql.Identifier, names), lists)
            return
        self._stage(table, _staged(table, names), lists)
        self._insert_staged(table, key, names)

    def _insert_staged(self, table: TargetTable, key: Sequence[str], names: Sequence[str]) -> None:
        self._run(
            sql.SQL(
                "insert into {table} ({names}) overriding system value"
                " select {staged} from {staging} as s {conflict}"
            ).format(
                table=table.identifier,
                names=_COMMA.join(map(sql.Identifier, names)),
                staged=_COMMA.join(_staged(table, names)),
                staging=table.staging,
                conflict=self._conflict(table, key, names),
            )
        )

    def _conflict(
        self, table: TargetTable, key: Sequence[str], names: Sequence[str]
    ) -> sql.Composable:
        """What happens to an inserted row whose key the target has."""
        settable = [
            name for name in names if name not in key and not table.by_name[name].is_always_identity
        ]
        if self._on_conflict == "nothing" or not settable:
            return sql.SQL("on conflict do nothing")
        return sql.SQL("on conflict ({}) do update set {}").format(
            _COMMA.join(map(sql.Identifier, key)),
            _COMMA.join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(n)) for n in settable),
        )

    def _pass(self, table: TargetTable, names: Sequence[str], rows: Sequence[Values]) -> None:
        """Remember how far the rows' values take the sequences of the table."""
        for name, column in table.sequences.items():
            texts = [row[name] for row in rows] if name in names else []
            values = [int(text) for text in texts if text and text.lstrip("-").isdigit()]
            if not values or column.sequence is None:
                continue
            furthest = min if column.is_descending else max
            before = [self.passed[column.sequence][0]] if column.sequence in self.passed else []
            self.passed[column.sequence] = furthest(values + before), column.is_descending

    # --- rows with a key ----------------------------------------------------------------------

    def _delete(self, table: TargetTable, key: Sequence[str], keys: Sequence[Key]) -> None:
        self._stage(table, _origins(table, key), keys)
        count = self._run(
            sql.SQL("delete from {} as t using {} as s where {}").format(
                table.reference, table.staging, _joined(table, key)
            )
        )
        if count < len(keys):
            logger.warning(
                "%s had none of %d rows that were deleted", table.full_name, len(keys) - count
            )

    def _update(
        self,
        table: TargetTable,
        key: Sequence[str],
        names: Sequence[str],
        rows: Sequence[tuple[Key, UpdatedRow]],
        *,
        has_moved: bool,
        is_whole: bool,
    ) -> None:
        self._pass(table, names, [row.values for _, row in rows])
        always = [name for name in names if table.by_name[name].is_always_identity]
        if has_moved and set(always) & set(key):
            raise IdentityDiffers(next(name for name in always if name in key))
        settable = [n for n in names if n not in always and (has_moved or n not in key)]
        columns = [*_origins(table, key), *_staged(table, names)]
        lists = ((*row.origin, *(row.values[name] for name in names)) for _, row in rows)
        self._stage(table, columns, lists)
        count = self._set(table, key, settable) if settable else self._count(table, key)
        if count != len(rows):
            self._insert_missing(table, key, names, len(rows) - count, is_whole=is_whole)
        for name in always:
            if name not in key:
                self._require_same(table, key, name)

    def _set(self, table: TargetTable, key: Sequence[str], settable: Sequence[str]) -> int:
        pairs = zip(settable, _staged(table, settable), strict=True)
        return self._run(
            sql.SQL("update {} as t set {} from {} as s where {}").format(
                table.reference,
                _COMMA.join(sql.SQL("{} = s.{}").format(sql.Identifier(n), c) for n, c in pairs),
                table.staging,
                _joined(table, key),
            )
        )

    def _count(self, table: TargetTable, key: Sequence[str]) -> int:
        """How many rows of the target the staging table is about."""
        return self._run(
            sql.SQL("select from {} as t join {} as s on {}").format(
                table.reference, table.staging, _joined(table, key)
            )
        )

    def _insert_missing(
        self,
        table: TargetTable,
        key: Sequence[str],
        names: Sequence[str],
        missing: int,
        *,
        is_whole: bool,
    ) -> None:
        """As `on_conflict` has it; the staging table has the rows, `is_whole` all their columns."""
        if missing < 0 or self._on_conflict == "error":
            raise RowsDiffer
        if self._on_conflict == "update":
            if not is_whole:
                raise RowsDiffer
            self._insert_staged(table, key, names)

    def _require_same(self, table: TargetTable, key: Sequence[str], name: str) -> None:
        """An UPDATE cannot set a column that is GENERATED ALWAYS: it must have its value."""
        [staged] = _staged(table, [name])
        cursor = self._session.execute(
            sql.SQL(
                "select from {} as t join {} as s on {} where t.{} is distinct from s.{} limit 1"
            ).format(
                table.reference, table.staging, _joined(table, key), sql.Identifier(name), staged
            ),
            prepare=False,
        )
        if cursor.rowcount:
            raise IdentityDiffers(name)

    # --- rows without a key -------------------------------------------------------------------

    def _remove(self, table: TargetTable, names: Sequence[str], rows: Sequence[Values]) -> None:
        """Delete as many equal rows of a table without a key as `rows` has; compared as text."""
        count = self._remove_staged(table, names, rows) if names else self._remove_any(table, rows)
        if count != len(rows) and self._on_conflict == "error":
            raise RowsDiffer

    def _remove_any(self, table: TargetTable, rows: Sequence[Values]) -> int:
        """Delete so many rows of a table without columns: they are all equal."""
        query = "delete from {0} where ctid = any(array(select ctid from {0} limit {1}))"
        return self._run(sql.SQL(query).format(table.reference, sql.Literal(len(rows))))

    def _remove_staged(
        self, table: TargetTable, names: Sequence[str], rows: Sequence[Values]
    ) -> int:
        self._stage(table, _staged(table, names), ([row[name] for name in names] for row in rows))
        texts = [
            _COMMA.join(sql.SQL("{}::text").format(column) for column in columns)
            for columns in (map(sql.Identifier, names), _staged(table, names))
        ]
        return self._run(
            sql.SQL(
                "with s as ("
                " select r, row_number() over (partition by r) as n"
                " from (select array[{staged}] as r from {staging}) as q"
                "), m as ("
                " select place, leaf, r, row_number() over (partition by r) as n"
                " from (select ctid as place, tableoid as leaf, array[{own}] as r from {table}) q"
                " where r in (select r from s)"
                ") delete from {table} as t using m join s using (r, n)"
                " where t.ctid = m.place and t.tableoid = m.leaf"
            ).format(own=texts[0], staged=texts[1], staging=table.staging, table=table.reference)
        )

    # --- statements ---------------------------------------------------------------------------

    def _stage(
        self,
        table: TargetTable,
        columns: Sequence[sql.Identifier],
        rows: Iterable[Sequence[str | None]],
    ) -> None:
        """Fill the staging table of `table`; it has nothing else."""
        text = table.staging.as_string(None)
        self._run(_staging_statement(table))
        if text in self._used:
            self._run(sql.SQL("truncate {}").format(table.staging))
        self._used.add(text)
        self._copy(table.staging, columns, rows)

    def _copy(
        self,
        table: sql.Identifier,
        columns: Iterable[sql.Identifier],
        rows: Iterable[Sequence[str | None]],
    ) -> None:
        statement = sql.SQL("copy {} ({}) from stdin").format(table, _COMMA.join(columns))
        with self._session.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def _run(self, statement: sql.Composed) -> int:
        """How many rows were written. Not prepared: a staging table has other sizes each time."""
        return self._session.execute(statement, prepare=False).rowcount


def _staging_statement(table: TargetTable) -> sql.Composed:
    """A table with each column twice: `o` for the key a row has in the target, `c` for values."""
    columns = (
        sql.SQL("o{n} {type}, c{n} {type}").format(
            n=sql.SQL(str(place)),  # pyright: ignore[reportArgumentType]
            type=sql.SQL(column.plain_type),  # pyright: ignore[reportArgumentType]
        )
        for place, column in enumerate(table.columns)
    )
    return sql.SQL("create temporary table if not exists {} ({}) on commit delete rows").format(
        table.staging, _COMMA.join(columns)
    )


def _origins(table: TargetTable, names: Sequence[str]) -> list[sql.Identifier]:
    return [sql.Identifier(f"o{table.places[name]}") for name in names]


def _staged(table: TargetTable, names: Sequence[str]) -> list[sql.Identifier]:
    return [sql.Identifier(f"c{table.places[name]}") for name in names]


def _joined(table: TargetTable, key: Sequence[str]) -> sql.Composed:
    pairs = zip(key, _origins(table, key), strict=True)
    return sql.SQL(" and ").join(
        sql.SQL("t.{} = s.{}").format(_compared(table.by_name[name]), column)
        for name, column in pairs
    )


def _compared(column: TargetColumn) -> sql.Composed:
    """The key's column with a type that has an equality: that below a domain, as in staging."""
    name = sql.Identifier(column.name)
    if column.plain_type == column.type_name:
        return sql.Composed([name])
    # The index is used all the same: the cast changes nothing but the type's name.
    plain_type = sql.SQL(column.plain_type)  # pyright: ignore[reportArgumentType]
    return sql.SQL("{}::{}").format(name, plain_type)


def _by_shape(
    rows: Sequence[tuple[Key, UpdatedRow]], table: TargetTable
) -> dict[tuple[bool, tuple[str, ...]], list[tuple[Key, UpdatedRow]]]:
    """Updates of the same columns, those that move a row to another key apart."""
    groups: defaultdict[tuple[bool, tuple[str, ...]], list[tuple[Key, UpdatedRow]]]
    groups = defaultdict(list)
    for key, row in rows:
        groups[key != row.origin, tuple(row.values)].append((key, row))
    merged: dict[tuple[bool, tuple[str, ...]], list[tuple[Key, UpdatedRow]]] = {}
    for (has_moved, names), members in groups.items():
        merged.setdefault((has_moved, _written(names, table)), []).extend(members)
    return merged


def _grouped(rows: Sequence[Values], table: TargetTable) -> dict[tuple[str, ...], list[Values]]:
    """Rows with the same columns."""
    groups: defaultdict[tuple[str, ...], list[Values]] = defaultdict(list)
    for row in rows:
        groups[tuple(row)].append(row)
    merged: dict[tuple[str, ...], list[Values]] = {}
    for names, members in groups.items():
        merged.setdefault(_written(names, table), []).extend(members)
    return merged


def _written(names: Sequence[str], table: TargetTable) -> tuple[str, ...]:
    """The names without columns that the target generates, in the table's order."""
    return tuple(sorted((n for n in names if n in table.by_name), key=table.places.__getitem__))
