"""
Random histories of one database: rows change, and so does everything that shapes them.

A history is a list of steps that its seed alone decides: transactions, waits, and what happens to
the stream. Its heart is the excursion: a publication, a key, an identity, a type, an enum label, a
name, a schema or a partition is changed, rows are written meanwhile, and it is changed back (or is
not). Every statement tolerates any state: one that the server refuses is left out of its
transaction, or the transaction is rolled back, as the step says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, Literal, TypeAlias, get_args

Kind: TypeAlias = Literal["all", "schemas", "list"]
"""Of a publication: FOR ALL TABLES, FOR TABLES IN SCHEMA, FOR TABLE."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

PUBLICATION: Final = "proof"

COMPLETE: Final = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"

MOVES: Final = (6, 12)
"""Of one history, at least and at most; an excursion is one move of several steps."""

LARGE_ROWS: Final = 400
"""Of 300 bytes: past the 64 kB from which on Postgres streams a transaction."""


class Event(Enum):
    """What happens to the stream between two transactions."""

    STOP = "stop the stream"
    START = "start the stream"
    KILL = "end the stream between a commit and its confirmation"
    RECONNECT = "terminate the walsender"


@dataclass(frozen=True, slots=True)
class Wait:
    """For the recopier's poll to come, or not."""

    seconds: float

    def __str__(self) -> str:
        return f"-- wait {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Transaction:
    """
    Statements of one transaction; a single one is sent without BEGIN.

    `is_guarded`: each statement has a savepoint, so one that is refused is left out; else it ends
    the transaction.
    """

    statements: tuple[str, ...]
    is_guarded: bool = False
    is_rolled_back: bool = False

    def __str__(self) -> str:
        if len(self.statements) == 1 and not self.is_rolled_back:
            return f"{self.statements[0]};"
        lines = [f"  {statement};" for statement in self.statements]
        guard = "  -- each statement in a savepoint" if self.is_guarded else ""
        return "\n".join(
            [f"begin;{guard}", *lines, "rollback;" if self.is_rolled_back else "commit;"]
        )


Step: TypeAlias = Transaction | Wait | Event


@dataclass(frozen=True, slots=True)
class Excursion:
    """
    There and back again. `table` is written to meanwhile, under `name`.

    `is_alone`: statements that refuse to run in a transaction.
    """

    table: str
    there: tuple[str, ...]
    back: tuple[str, ...]
    name: str = ""
    is_alone: bool = False


def schema_of(seed: int) -> str:
    """The namespace of a history's tables; those they move to begin with it."""
    return f"h{seed}"


def kind_of(seed: int) -> Kind:
    """Of the publication that a history runs under."""
    return Random(f"kind {seed}").choice(KINDS)


def show(steps: Sequence[Step]) -> str:
    """A history as a script to read."""
    return "\n".join(f"-- {step.value}" if isinstance(step, Event) else str(step) for step in steps)


# --- the tables -------------------------------------------------------------------------------


def creation(seed: int, by: Random) -> list[str]:
    """Namespaces, types and tables with a few rows; run with the namespaces in the search path."""
    namespace = schema_of(seed)
    return [
        f"create schema {namespace}",
        f"create schema {namespace}_b",
        "create type mood as enum ('sad', 'so so', 'glad')",
        "create type pair as (a int, b text)",
        f"create role {namespace}_role",
        "create table target (id int primary key)",
        """create table t (id int constraint t_pkey primary key, code int not null
            constraint t_code_key unique, name text, n int)""",
        "create table k (kind int, body text)",
        "alter table k replica identity full",
        """create table v (id int primary key, m mood, c pair, r regclass, o oid, net cidr,
            at timestamp, role regrole, word varchar(60))""",
        """create table p (region text, id int, stock int, primary key (region, id))
            partition by list (region)""",
        "create table p_a partition of p for values in ('a')",
        "create table p_b partition of p for values in ('b')",
        "create table p_rest partition of p default",
        "create table spare (region text not null, id int not null, stock int)",
        "alter table spare add primary key (region, id)",
        "insert into spare select 'c', g, g from generate_series(1, 5) g",
        *(write(table, by) for table in WRITTEN for _ in range(2)),
    ]


def write(table: str, by: Random, name: str = "") -> str:
    """One statement that changes rows of a table, under the name it has now."""
    templates = WRITTEN[table]
    # Rows come more often than they go.
    template = by.choice([templates[0], *templates])
    low = by.randrange(1, 40)
    return template.format(
        name=name or table,
        low=low,
        high=low + by.randrange(1, 12),
        mod=by.choice((2, 3, 5, 7)),
        rest=by.randrange(2),
        word=by.choice(("", "a", "b\\tc", "größer", "x" * 50)),
        number=by.randrange(1_000),
        region=by.choice("abcz"),
        label=by.randrange(1, 4),
    )


WRITTEN: Final[dict[str, tuple[str, ...]]] = {
    "t": (
        (
            "insert into {name} (id, code, name) select g, g * 10 + {rest}, '{word}' from"
            " generate_series({low}, {high}) g on conflict do nothing"
        ),
        "update {name} set name = '{word}{number}' where id % {mod} = {rest}",
        "update {name} set n = {number} where code % {mod} = {rest}",
        "update {name} set code = -code where id % {mod} = {rest}",
        "update {name} set id = id + 1000 where id = {low}",
        "delete from {name} where id % {mod} = {rest} and id < {high}",
    ),
    "k": (
        "insert into {name} select {rest}, '{word}' from generate_series(1, {mod})",
        (
            "update {name} set body = '{word}{number}' where ctid in"
            " (select ctid from {name} where kind = {rest} limit 1)"
        ),
        "delete from {name} where ctid in (select ctid from {name} limit 1)",
    ),
    "v": (
        (
            "insert into {name} select g, (enum_range(null::mood))[{label}],"
            " row(g, '{word}')::pair, 'target', 4000000000 + g, '10.{label}.{mod}.0/24',"
            " '2024-01-01'::timestamp + {number} * interval '1 s', current_role::regrole, '{word}'"
            " from generate_series({low}, {high}) g on conflict do nothing"
        ),
        (
            "insert into {name} (id, m, c, o) select g, (enum_range(null::mood))[{label}],"
            " row(g, '{word}')::pair, g from generate_series({low}, {high}) g"
            " on conflict do nothing"
        ),
        "update {name} set m = (enum_range(null::mood))[{label}] where id % {mod} = {rest}",
        "update {name} set at = '2025-06-01 12:00' where id % {mod} = {rest}",
        "update {name} set c = row({number}, null)::pair where id = {low}",
        "delete from {name} where id % {mod} = {rest} and id < {high}",
    ),
    "p": (
        (
            "insert into {name} select '{region}', g, {number}"
            " from generate_series({low}, {high}) g on conflict do nothing"
        ),
        "update {name} set stock = {number} where id % {mod} = {rest}",
        "update {name} set region = '{region}' where id = {low} and region = 'a'",
        "delete from {name} where id % {mod} = {rest} and id < {high}",
    ),
}


def large(table: str) -> str:
    """A statement after which Postgres streams the transaction while it runs."""
    first, last = 5_000, 4_999 + LARGE_ROWS
    rows = f"generate_series({first}, {last}) g"
    return {
        "t": f"insert into t (id, code, name) select g, g * 10, repeat('x', 300) from {rows}"
        " on conflict do nothing",
        "k": f"insert into k select g, repeat('x', 300) from {rows}",
        "v": f"insert into v (id, word, c) select g, 'large', row(g, repeat('x', 300))::pair"
        f" from {rows} on conflict do nothing",
        "p": f"insert into p select case when g % 2 = 0 then 'a' else 'b' end, g, g from {rows}"
        " on conflict do nothing",
    }[table]


# --- what changes and changes back ------------------------------------------------------------


def of_publication(kind: Kind, namespace: str) -> list[Excursion]:
    """Ways to show less for a while."""
    name = PUBLICATION
    whole = f"alter publication {name} set ({COMPLETE})"
    scope = {
        "all": "for all tables",
        "schemas": f"for tables in schema {namespace}, {namespace}_b",
        "list": "for table t, k, v, p, target, spare",
    }[kind]
    common = [
        Excursion("t", (f"alter publication {name} set (publish = 'insert')",), (whole,)),
        Excursion("t", (f"alter publication {name} set (publish = 'update, delete')",), (whole,)),
        Excursion("k", (f"alter publication {name} set (publish = 'insert, update')",), (whole,)),
        Excursion(
            "p",
            (f"alter publication {name} set (publish_via_partition_root = false)",),
            (whole,),
        ),
    ]
    if kind == "all":
        return [
            *common,
            Excursion(
                "t",
                (
                    f"drop publication {name}",
                    f"create publication {name} {scope} with (publish = 'insert, delete')",
                ),
                (whole,),
            ),
        ]
    if kind == "schemas":
        return [
            *common,
            Excursion(
                "t",
                (f"alter publication {name} drop tables in schema {namespace}",),
                (f"alter publication {name} add tables in schema {namespace}",),
            ),
        ]
    return [
        *common,
        *(
            Excursion(
                table,
                (f"alter publication {name} drop table {table}",),
                (f"alter publication {name} add table {table}",),
            )
            for table in WRITTEN
        ),
    ]


def of_tables(namespace: str) -> list[Excursion]:
    """Keys, identities, types, names, storage, partitions."""
    other = f"{namespace}_b"
    return [
        *_keys(),
        *_types(),
        Excursion(
            "t", ("alter table t rename to t_new",), ("alter table t_new rename to t",), "t_new"
        ),
        Excursion(
            "t", ("alter table t rename name to title",), ("alter table t rename title to name",)
        ),
        Excursion(
            "t",
            ("alter table t rename code to spare_code", "alter table t rename n to code"),
            ("alter table t rename code to n", "alter table t rename spare_code to code"),
        ),
        *(
            Excursion(
                table,
                (f"alter table {table} set schema {other}",),
                (f"alter table {table} set schema {namespace}",),
            )
            for table in WRITTEN
        ),
        Excursion(
            "k",
            (f"alter schema {namespace} rename to {namespace}_x",),
            (f"alter schema {namespace}_x rename to {namespace}",),
        ),
        *(
            Excursion(
                table, (f"alter table {table} set unlogged",), (f"alter table {table} set logged",)
            )
            for table in ("t", "k")
        ),
        Excursion(
            "t",
            ("alter table t add column extra int default 5",),
            ("alter table t drop column extra",),
        ),
        Excursion(
            "t",
            ("alter table t drop column n",),
            ("alter table t add column n text default 'again'",),
        ),
        Excursion("t", ("truncate t",), ()),
        Excursion("k", ("truncate k, t",), ()),
        Excursion("t", ("vacuum full t",), (), is_alone=True),
        Excursion(
            "k",
            ("drop table k",),
            ("create table k (kind int, body text)", "alter table k replica identity full"),
        ),
        Excursion(
            "k",
            ("alter table k rename to k_old", "create table k (kind int, body text)"),
            ("drop table k", "alter table k_old rename to k"),
        ),
        *_partitions(),
    ]


def _keys() -> list[Excursion]:
    by_id = (
        "alter table t drop constraint t_pkey",
        "alter table t add constraint t_pkey primary key (id)",
    )
    by_code = (by_id[0], "alter table t add constraint t_pkey primary key (code)")
    default = ("alter table t replica identity default",)
    return [
        Excursion("t", by_code, by_id),
        Excursion("t", by_code, ()),
        Excursion(
            "t", (by_id[0], "alter table t add constraint t_pkey primary key (code, id)"), by_id
        ),
        Excursion("t", ("alter table t replica identity full",), default),
        Excursion("t", ("alter table t replica identity using index t_code_key",), default),
        Excursion("t", ("alter table t replica identity nothing",), default),
        Excursion(
            "k",
            (
                "alter table k add column id serial primary key",
                "alter table k replica identity default",
            ),
            ("alter table k replica identity full", "alter table k drop column id"),
        ),
        Excursion(
            "p",
            ("alter table p_a replica identity full",),
            ("alter table p_a replica identity default",),
        ),
    ]


def _types() -> list[Excursion]:
    def retype(table: str, column: str, to: str, back: str) -> Excursion:
        alter = f"alter table {table} alter column {column} type"
        return Excursion(
            table,
            (f"{alter} {to} using {column}::{to}",),
            (f"{alter} {back} using {column}::{back}",),
        )

    return [
        retype("v", "at", "timestamptz", "timestamp"),
        retype("v", "o", "int4", "oid"),
        retype("v", "net", "inet", "cidr"),
        retype("v", "r", "oid", "regclass"),
        retype("v", "word", "text", "varchar(60)"),
        retype("v", "m", "text", "mood"),
        retype("v", "id", "bigint", "int"),
        retype("v", "id", "oid", "int"),
        retype("t", "n", "bigint", "int"),
        retype("t", "id", "oid", "int"),
        Excursion(
            "v",
            ("alter type mood rename value 'sad' to 'blue'",),
            ("alter type mood rename value 'blue' to 'sad'",),
        ),
        Excursion("v", ("alter type mood rename value 'glad' to 'happy'",), ()),
        Excursion("v", ("alter type mood add value if not exists 'calm' before 'glad'",), ()),
        Excursion(
            "v", ("alter type pair add attribute d int",), ("alter type pair drop attribute d",)
        ),
        Excursion(
            "v",
            ("alter table target rename to target_new",),
            ("alter table target_new rename to target",),
        ),
        Excursion("v", ("alter table target set schema public",), ("drop table target",)),
    ]


def _partitions() -> list[Excursion]:
    a, b = "for values in ('a')", "for values in ('b')"
    return [
        Excursion(
            "p",
            ("alter table p detach partition p_a",),
            (f"alter table p attach partition p_a {a}",),
            "p_a",
        ),
        Excursion(
            "p",
            ("alter table p detach partition p_b",),
            (f"alter table p attach partition p_b {b}",),
            "p_b",
        ),
        Excursion("p", ("alter table p detach partition p_b",), ()),
        Excursion(
            "p",
            ("alter table p attach partition spare for values in ('c')",),
            ("alter table p detach partition spare",),
            "spare",
        ),
        Excursion("p", ("truncate p_a",), ()),
        Excursion("p", ("truncate p",), ()),
        Excursion("p", ("drop table p_b",), (f"create table p_b partition of p {b}",)),
        Excursion(
            "p", ("alter table p rename to p_new",), ("alter table p_new rename to p",), "p_new"
        ),
    ]


def undone(by: Random) -> list[str]:
    """Two tables alike, born and filled in a savepoint that is rolled back."""
    columns = by.choice(("id int primary key, v text", "like t including all", "like k"))
    fill = "insert into {} select * from generate_series(1, 50)"
    if columns == "id int primary key, v text":
        fill = "insert into {} select g, repeat('y', 200) from generate_series(1, 200) g"
    if columns == "like k":
        fill = "insert into {} select g, repeat('y', 200) from generate_series(1, 200) g"
    if columns == "like t including all":
        fill = "insert into {} select g, g, repeat('y', 200) from generate_series(1, 200) g"
    writes = [fill.format(name) for name in ("twin_a", "twin_b")]
    return [
        "savepoint twins",
        f"create table twin_a ({columns})",
        f"create table twin_b ({columns})",
        "alter table twin_a replica identity full",
        *writes,
        "delete from twin_a",
        "rollback to savepoint twins",
    ]


# --- a history --------------------------------------------------------------------------------


class Writer:
    """Makes one history; `by` decides everything."""

    def __init__(self, seed: int, kind: Kind) -> None:
        self.by = Random(f"history {seed}")
        namespace = schema_of(seed)
        self.excursions = {
            "publication": of_publication(kind, namespace),
            "tables": of_tables(namespace),
        }
        self.steps: list[Step] = []

    def write(self) -> list[Step]:
        """All of it."""
        for _ in range(self.by.randint(*MOVES)):
            self._move()
        return self.steps

    def _move(self) -> None:
        choice = self.by.random()
        if choice < 0.25:
            self._rows()
        elif choice < 0.3:
            self._transaction(undone(self.by), self.by.choice([*WRITTEN]))
        elif choice < 0.4:
            self._happen()
        else:
            self._excursion(
                self.by.choice(self.excursions[self.by.choice(["publication", "tables", "tables"])])
            )

    def _rows(self, table: str = "", name: str = "") -> None:
        chosen = table or self.by.choice([*WRITTEN])
        count = self.by.choice((1, 1, 2, 4))
        self._transaction([write(chosen, self.by, name) for _ in range(count)], chosen)

    def _happen(self) -> None:
        match self.by.randrange(5):
            case 0:
                self.steps += [Event.STOP]
            case 1:
                self.steps += [Event.KILL]
            case 2:
                self.steps += [Event.RECONNECT]
            case _:
                self.steps += [Event.START, Wait(self.by.uniform(0.1, 1.4))]

    def _excursion(self, trip: Excursion) -> None:
        rows = [write(trip.table, self.by, trip.name) for _ in range(self.by.randint(1, 4))]
        if trip.is_alone:
            self.steps += [Transaction((statement,)) for statement in trip.there]
            self._rows(trip.table)
            return
        if self.by.random() < 0.25:
            self._transaction([*trip.there, *rows, *trip.back], trip.table)
            return
        with_there = self.by.random() < 0.3
        self._transaction([*trip.there, *(rows if with_there else [])], trip.table)
        for _ in range(self.by.randint(1, 3)):
            choice = self.by.random()
            if choice < 0.6:
                self._rows(trip.table, trip.name)
            elif choice < 0.75:
                self._happen()
            elif choice < 0.9:
                self.steps.append(Wait(self.by.uniform(0.1, 1.4)))
            else:
                self._excursion(self.by.choice(self.excursions["tables"]))
        if trip.back and self.by.random() < 0.9:
            self._transaction([*trip.back], trip.table)
        if self.by.random() < 0.7:
            self._rows(trip.table)

    def _transaction(self, statements: list[str], table: str) -> None:
        """With or without a large start, savepoints, an end that takes everything back."""
        by = self.by
        if by.random() < 0.15:
            statements = [large(table), *statements]
        if by.random() < 0.2:
            start = by.randrange(len(statements))
            end = by.randint(start + 1, len(statements))
            undo = by.choice(("rollback to savepoint s", "rollback to savepoint s", "release s"))
            statements = [
                *statements[:start],
                "savepoint s",
                *statements[start:end],
                undo,
                *statements[end:],
                write(table, by),
            ]
        self.steps.append(Transaction(tuple(statements), by.random() < 0.6, by.random() < 0.08))


def history(seed: int) -> list[Step]:
    """The steps after the tables are there; the same for the same seed."""
    return Writer(seed, kind_of(seed)).write()
