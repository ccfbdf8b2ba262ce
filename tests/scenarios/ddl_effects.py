"""What each kind of DDL does to the log and to what is made from it, and the page that says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

BEFORE: Final = (
    "create type {t}_kind as enum ('a', 'b')",
    "create table {t} (id bigint primary key, note text, n smallint not null, kind {t}_kind)",
    "insert into {t} values (1, 'one', 1, 'a'), (2, 'two', 2, 'b')",
)
"""Every command has a table of its own."""


class Effects(NamedTuple):
    """What is observed after a command, while no row changes."""

    log: str
    table: str
    history: str
    index: str
    replica: str


class Command(NamedTuple):
    """A command on the table `{t}`, and what it does."""

    group: str
    statement: str
    effects: Effects


COMMANDS: Final = (
    Command("Columns", "alter table {t} add column more int", Effects("", "", "", "", "")),
    Command(
        "Columns",
        "alter table {t} add column more int not null default 7",
        Effects("", "", "", "", ""),
    ),
    Command(
        "Columns",
        "alter table {t} add column at timestamptz default clock_timestamp()",
        Effects("", "", "", "", ""),
    ),
    Command("Columns", "alter table {t} add column seen timestamp", Effects("", "", "", "", "")),
    Command("Columns", "alter table {t} rename column note to remark", Effects("", "", "", "", "")),
    Command("Columns", "alter table {t} drop column note", Effects("", "", "", "", "")),
    Command(
        "Columns",
        "alter table {t} drop column note; alter table {t} add column note text",
        Effects("", "", "", "", ""),
    ),
    Command("Columns", "alter table {t} alter column n type int", Effects("", "", "", "", "")),
    Command("Columns", "alter table {t} alter column n type text", Effects("", "", "", "", "")),
    Command(
        "Columns",
        "alter table {t} alter column note type varchar(100)",
        Effects("", "", "", "", ""),
    ),
    Command("Columns", "alter table {t} alter column n set default 5", Effects("", "", "", "", "")),
    Command(
        "Columns", "alter table {t} alter column note set not null", Effects("", "", "", "", "")
    ),
    Command("Columns", "alter table {t} alter column n drop not null", Effects("", "", "", "", "")),
    Command("Columns", "comment on column {t}.note is 'remark'", Effects("", "", "", "", "")),
    Command(
        "Columns",
        "alter table {t} add column twice int generated always as (n * 2) stored",
        Effects("", "", "", "", ""),
    ),
    Command(
        "Keys and identity", "alter table {t} replica identity full", Effects("", "", "", "", "")
    ),
    Command(
        "Keys and identity", "alter table {t} drop constraint {t}_pkey", Effects("", "", "", "", "")
    ),
    Command(
        "Keys and identity",
        "alter table {t} drop constraint {t}_pkey; alter table {t} add primary key (id, n)",
        Effects("", "", "", "", ""),
    ),
    Command("Types", "alter type {t}_kind add value 'c'", Effects("", "", "", "", "")),
    Command("Types", "alter type {t}_kind rename value 'b' to 'z'", Effects("", "", "", "", "")),
    Command("Types", "alter type {t}_kind rename to {t}_sort", Effects("", "", "", "", "")),
    Command("Tables", "alter table {t} rename to {t}_renamed", Effects("", "", "", "", "")),
    Command("Tables", "alter table {t} set schema other", Effects("", "", "", "", "")),
    Command("Tables", "truncate {t}", Effects("", "", "", "", "")),
    Command("Tables", "drop table {t}", Effects("", "", "", "", "")),
    Command(
        "Tables",
        "drop table {t}; create table {t} (id bigint primary key, other text)",
        Effects("", "", "", "", ""),
    ),
    Command("Tables", "create table {t}_new (id bigint primary key)", Effects("", "", "", "", "")),
    Command("Tables", "create table {t}_rows as select * from {t}", Effects("", "", "", "", "")),
    Command(
        "Tables",
        "create unlogged table {t}_unlogged (id int primary key)",
        Effects("", "", "", "", ""),
    ),
    Command("Tables", "alter table {t} set unlogged", Effects("", "", "", "", "")),
    Command("Tables", "create index on {t} (note)", Effects("", "", "", "", "")),
    Command("Tables", "cluster {t} using {t}_pkey", Effects("", "", "", "", "")),
    Command(
        "Partitions",
        "create table {t}_parts (id int primary key) partition by range (id); create table {t}_parts_1 partition of {t}_parts for values from (0) to (10)",
        Effects("", "", "", "", ""),
    ),
)

HEAD: Final = """\
# What each command does

Each line is a command that a test runs on a table of its own, with two rows, and then looks at what
has changed without any change of a row after it: in the [change log](change-log.md), the [typed
table](../guides/tables.md), its [history](../guides/history.md), an [index](../guides/search.md)
and a [Postgres sink](../guides/postgres-sink.md). The source has the event triggers of
[schema changes](../guides/schema-changes.md).

- log: the rows that it gets, in order. `copy` comes with the rows of the table, in a while.
- typed table, history: *altered*, in place; *written again*, from the log, in one commit.
- index: *field*, which later changes of rows fill; *new index*, built beside and swapped.
- replica: *altered*, as the source is; *copied*, with its rows again.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    group = ""
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            yield f"\n## {group}\n\n| command | log | typed table | history | index | replica |\n"
            yield "| --- | --- | --- | --- | --- | --- |\n"
        yield f"| `{command.statement.format(t='t')}` | {' | '.join(command.effects)} |\n"
