"""
A database whose rows and tables change at random, seeded: columns and tables are renamed, exchange
their names, are dropped, made again and retyped, and keys move to other columns.

Each transaction is one move, with rows before, within and after it. A statement that the server
refuses is left out of its transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, LiteralString, TypeAlias

import psycopg
from psycopg import sql

from pgstream_dagster.pipeline import Pipeline
from tests.support.harness.runner import catch_up

NAMES: Final = ("a", "b", "c", "d", "e")
"""Of tables: few, so that a name is soon that of another table."""

COLUMNS: Final = ("x", "y", "z", "w")
"""Of columns beside `id` and `code`, of which a table's key is one."""

TYPES: Final = ("int", "bigint", "text", "numeric")

Move: TypeAlias = Callable[[], None]


@dataclass
class RandomSchema:
    """Changes the database at `dsn`; `script` has every statement that ran."""

    dsn: str
    seed: int
    script: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._by, self._number = Random(self.seed), 0
        self._connection: psycopg.Connection[Any] = psycopg.connect(self.dsn, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def create(self) -> None:
        """Some tables, with rows."""
        self._run("create schema other")
        for name in NAMES[:3]:
            self._create(name)
            self._write(("public", name))

    def move(self) -> None:
        """One transaction."""
        if self._by.random() < 0.3:
            self._rows()
            return
        move = self._by.choice(
            [
                *(
                    self._add,
                    self._drop,
                    self._rename,
                    self._swap_columns,
                    self._replace,
                    self._retype,
                ),
                *(self._rename_table, self._swap_tables, self._rotate_tables, self._again),
                *(self._truncate, self._key, self._namespace),
            ]
        )
        with self._connection.transaction():
            for step in (self._rows, move, self._rows):
                if step is move or self._by.random() < 0.5:
                    step()

    def touch(self) -> None:
        """A row for each table, whatever its key is."""
        for table in self.tables():
            columns = self._columns(table)
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            self._number += 1
            values = sql.SQL(", ").join(sql.Literal(self._number + 1_000) for _ in columns)
            text = "insert into {} ({}) values ({})"
            self._connection.execute(sql.SQL(text).format(self._identifier(table), names, values))
            self.script.append(f"-- a row for {table}")

    def tables(self) -> list[tuple[str, str]]:
        """Namespace and name of every table."""
        query = (
            "select n.nspname::text, relname::text from pg_class c join pg_namespace n"
            " on n.oid = relnamespace where relkind = 'r' and nspname in ('public', 'other')"
            " order by 1, 2"
        )
        return self._connection.execute(query).fetchall()

    # --- rows ---------------------------------------------------------------------------------

    def _rows(self) -> None:
        for table in self.tables():
            if self._by.random() < 0.7:
                self._write(table)

    def _write(self, table: tuple[str, str]) -> None:
        columns = self._columns(table)
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        for _ in range(self._by.randint(1, 3)):
            self._number += 1
            values = sql.SQL(", ").join(self._value(n, t) for n, t in columns.items())
            self._run("insert into {} ({}) values ({})", self._identifier(table), names, values)
        chosen = sql.SQL("(select ctid from {} order by code limit 1 offset {})")
        for _ in range(self._by.randint(0, 2)):
            self._number += 1
            name, kind = self._by.choice(list(columns.items()))
            row = chosen.format(self._identifier(table), sql.Literal(self._by.randint(0, 4)))
            value = self._value(name, kind)
            parts = (self._identifier(table), sql.Identifier(name), value, row)
            self._run("update {} set {} = {} where ctid = {}", *parts)
        if self._by.random() < 0.3:
            row = chosen.format(self._identifier(table), sql.Literal(self._by.randint(0, 4)))
            self._run("delete from {} where ctid = {}", self._identifier(table), row)

    def _value(self, name: str, kind: str) -> sql.Composable:
        if name in ("id", "code"):  # `id` may be any once it is no key
            return sql.Literal(self._number if name == "code" else self._by.randint(1, 60))
        if self._by.random() < 0.2:
            return sql.SQL("null")
        number = self._by.randint(0, 99)
        return sql.Literal(f"{number}" if kind == "text" else number)

    # --- columns ------------------------------------------------------------------------------

    def _add(self) -> None:
        table, kind = self._some(), self._by.choice(TYPES)
        default = self._by.choice(("", " default 7", " not null default 8"))
        name = sql.Identifier(self._by.choice(COLUMNS))
        self._run(
            "alter table {} add column {} {}",
            self._identifier(table),
            name,
            sql.SQL(kind + default),
        )

    def _drop(self) -> None:
        table = self._some()
        if name := self._other(table):
            self._run("alter table {} drop column {}", self._identifier(table), name)

    def _rename(self) -> None:
        table = self._some()
        if name := self._other(table):
            new = sql.Identifier(self._by.choice(COLUMNS))
            self._run("alter table {} rename column {} to {}", self._identifier(table), name, new)

    def _swap_columns(self) -> None:
        table = self._some()
        names = self._by.sample(columns := list(self._columns(table)), min(len(columns), 3))
        moved = list(zip(names, names[1:] + names[:1], strict=True))
        for was, now in [*((n, f"tmp_{n}") for n in names), *((f"tmp_{a}", b) for a, b in moved)]:
            parts = (self._identifier(table), sql.Identifier(was), sql.Identifier(now))
            self._run("alter table {} rename column {} to {}", *parts)

    def _replace(self) -> None:
        """A column gets the name of another that is dropped, or of one that moves on."""
        table, kind = self._some(), self._by.choice(TYPES)
        if name := self._other(table):
            if self._by.random() < 0.5:
                self._run("alter table {} drop column {}", self._identifier(table), name)
            else:
                new = sql.Identifier(self._by.choice(COLUMNS))
                self._run(
                    "alter table {} rename column {} to {}", self._identifier(table), name, new
                )
            self._run(
                "alter table {} add column {} {}", self._identifier(table), name, sql.SQL(kind)
            )

    def _retype(self) -> None:
        table = self._some()
        if name := self._other(table):
            kind = sql.SQL(self._by.choice(TYPES))
            self._run(
                "alter table {} alter column {} drop default,"
                " alter column {} type {} using {}::text::{}",
                *(self._identifier(table), name, name, kind, name, kind),
            )

    def _key(self) -> None:
        """The key moves to the other column, or the table has none for a while."""
        table = self._some()
        self._run(
            "delete from {0} t using {0} o where t.id = o.id and t.code < o.code",
            self._identifier(table),
        )
        query = "select conname from pg_constraint where contype = 'p' and conrelid = %s::regclass"
        place = self._identifier(table).as_string(None)
        for (name,) in self._connection.execute(query, [place]).fetchall():
            parts = (self._identifier(table), sql.Identifier(name))
            self._run("alter table {} drop constraint {}", *parts)
        if self._by.random() < 0.3:
            self._run("alter table {} replica identity full", self._identifier(table))
            return
        key = sql.Identifier(self._by.choice(("id", "code")))
        self._run("alter table {} replica identity default", self._identifier(table))
        self._run("alter table {} add primary key ({})", self._identifier(table), key)

    # --- tables -------------------------------------------------------------------------------

    def _create(self, name: str) -> None:
        extra = "".join(
            f", {column} {self._by.choice(TYPES)}" for column in COLUMNS if self._by.random() < 0.5
        )
        key = self._by.choice(("primary key (id)", "primary key (code)", "unique (id, code)"))
        columns = sql.SQL(f"id int not null, code bigint not null{extra}, {key}")
        self._run("create table {} ({})", sql.Identifier("public", name), columns)
        if "unique" in key:
            self._run("alter table {} replica identity full", sql.Identifier("public", name))

    def _again(self) -> None:
        """A table is dropped, and perhaps another one is made under its name."""
        table = self._some()
        if len(self.tables()) > 3 or self._by.random() < 0.5:
            self._run("drop table {}", self._identifier(table))
        self._create(table[1] if self._by.random() < 0.7 else self._by.choice(NAMES))

    def _rename_table(self) -> None:
        new = sql.Identifier(self._by.choice(NAMES))
        self._run("alter table {} rename to {}", self._identifier(self._some()), new)

    def _swap_tables(self) -> None:
        self._exchange(2)

    def _rotate_tables(self) -> None:
        self._exchange(3)

    def _exchange(self, count: int) -> None:
        tables = [table for table in self.tables() if table[0] == "public"]
        chosen = self._by.sample(tables, min(count, len(tables)))
        names = [name for _, name in chosen]
        moved = list(zip(names, names[1:] + names[:1], strict=True))
        for was, now in [*((n, f"tmp_{n}") for n in names), *((f"tmp_{a}", b) for a, b in moved)]:
            parts = (sql.Identifier("public", was), sql.Identifier(now))
            self._run("alter table {} rename to {}", *parts)

    def _truncate(self) -> None:
        self._run("truncate {}", self._identifier(self._some()))

    def _namespace(self) -> None:
        table = self._some()
        other = sql.Identifier("other" if table[0] == "public" else "public")
        self._run("alter table {} set schema {}", self._identifier(table), other)

    # --- statements ---------------------------------------------------------------------------

    def _some(self) -> tuple[str, str]:
        return self._by.choice(self.tables())

    def _identifier(self, table: tuple[str, str]) -> sql.Identifier:
        return sql.Identifier(*table)

    def _other(self, table: tuple[str, str]) -> sql.Identifier | None:
        names = [name for name in self._columns(table) if name not in ("id", "code")]
        return sql.Identifier(self._by.choice(names)) if names else None

    def _columns(self, table: tuple[str, str]) -> dict[str, str]:
        query = (
            "select attname::text, format_type(atttypid, null) from pg_attribute"
            " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum"
        )
        place = self._identifier(table).as_string(None)
        return dict(self._connection.execute(query, [place]).fetchall())

    def _run(self, text: LiteralString, *parts: sql.Composable) -> None:
        statement = sql.SQL(text).format(*parts)
        try:
            with self._connection.transaction():
                self._connection.execute(statement)
        except psycopg.Error as error:
            self.script.append(f"-- {statement.as_string(None)}: {str(error).splitlines()[0]}")
        else:
            self.script.append(f"{statement.as_string(None)};")


def catch_up_with_copies(pipeline: Pipeline, source: RandomSchema) -> None:
    """Stream until the log has passed the points of all copies, too."""
    while True:
        watermark = catch_up(pipeline).watermark
        with pipeline.open() as opened:
            copies = opened.ledger.copies(opened.epoch).values()
        if all(copy.consistent_point <= watermark for copy in copies):
            return
        source.touch()
