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
    indexed: str
    replica: str


class Command(NamedTuple):
    """A command on the table `{t}`, and what it does."""

    group: str
    statement: str
    effects: Effects


COMMANDS: Final = (
    Command(
        "Columns",
        "alter table {t} add column more int",
        Effects("`ddl`", "altered", "altered", "field", "altered"),
    ),
    Command(
        "Columns",
        "alter table {t} add column more int not null default 7",
        Effects("`ddl`", "altered", "written again", "field, re-index", "altered"),
    ),
    Command(
        "Columns",
        "alter table {t} add column at timestamptz default clock_timestamp()",
        Effects("`ddl` `copy`", "written again", "written again", "field, re-index", "copied"),
    ),
    Command(
        "Columns",
        "alter table {t} add column seen timestamp",
        Effects("`ddl`", "altered", "written again", "field", "altered"),
    ),
    Command(
        "Columns",
        "alter table {t} rename column note to remark",
        Effects("`ddl`", "altered", "altered", "field", "altered"),
    ),
    Command(
        "Columns",
        "alter table {t} drop column note",
        Effects("`ddl`", "altered", "altered", "unchanged", "altered"),
    ),
    Command(
        "Columns",
        "alter table {t} drop column note; alter table {t} add column note text",
        Effects("`ddl`", "altered", "altered", "unchanged", "altered"),
    ),
    Command(
        "Columns",
        "alter table {t} alter column n type int",
        Effects("`ddl` `copy`", "written again", "written again", "re-index", "copied"),
    ),
    Command(
        "Columns",
        "alter table {t} alter column n type text",
        Effects("`ddl` `copy`", "written again", "written again", "re-index", "copied"),
    ),
    Command(
        "Columns",
        "alter table {t} alter column note type varchar(100)",
        Effects("`ddl` `copy`", "written again", "written again", "re-index", "copied"),
    ),
    Command(
        "Columns",
        "alter table {t} alter column n set default 5",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "unchanged"),
    ),
    Command(
        "Columns",
        "alter table {t} alter column note set not null",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "left as it is"),
    ),
    Command(
        "Columns",
        "alter table {t} alter column n drop not null",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "left as it is"),
    ),
    Command(
        "Columns",
        "comment on column {t}.note is 'remark'",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "unchanged"),
    ),
    Command(
        "Columns",
        "alter table {t} add column twice int generated always as (n * 2) stored",
        Effects("`ddl` `copy`", "written again", "written again", "field, re-index", "copied"),
    ),
    Command(
        "Keys and identity",
        "alter table {t} replica identity full",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "unchanged"),
    ),
    Command(
        "Keys and identity",
        "alter table {t} drop constraint {t}_pkey",
        Effects("`gap` `ddl` `copy`", "written again", "unchanged", "re-index", "unchanged"),
    ),
    Command(
        "Keys and identity",
        "alter table {t} drop constraint {t}_pkey; alter table {t} add primary key (id, n)",
        Effects(
            "`gap` `ddl` `gap` `ddl` `copy`",
            "written again",
            "written again",
            "re-index",
            "unchanged",
        ),
    ),
    Command(
        "Types",
        "alter type {t}_kind add value 'c'",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "unchanged"),
    ),
    Command(
        "Types",
        "alter type {t}_kind rename value 'b' to 'z'",
        Effects("`ddl` `copy`", "written again", "written again", "re-index", "unchanged"),
    ),
    Command(
        "Types",
        "alter type {t}_kind rename to {t}_sort",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "left as it is"),
    ),
    Command(
        "Tables",
        "alter table {t} rename to {t}_renamed",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "altered"),
    ),
    Command(
        "Tables",
        "alter table {t} set schema other",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "altered"),
    ),
    Command(
        "Tables",
        "truncate {t}",
        Effects("`truncate`", "written again", "written again", "unchanged", "unchanged"),
    ),
    Command(
        "Tables",
        "drop table {t}",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "left as it is"),
    ),
    Command(
        "Tables",
        "drop table {t}; create table {t} (id bigint primary key, other text)",
        Effects("`ddl` `copy`", "written again", "written again", "re-index", "left as it is"),
    ),
    Command(
        "Tables",
        "create table {t}_new (id bigint primary key)",
        Effects(
            "`ddl` `copy`",
            "written again (`public.t_new`)",
            "written again (`public.t_new`)",
            "unchanged",
            "copied",
        ),
    ),
    Command(
        "Tables",
        "create table {t}_rows as select * from {t}",
        Effects(
            "`ddl` `insert` `copy`",
            "written again (`public.t_rows`)",
            "unchanged",
            "unchanged",
            "copied",
        ),
    ),
    Command(
        "Tables",
        "create unlogged table {t}_unlogged (id int primary key)",
        Effects("nothing", "unchanged", "unchanged", "unchanged", "left as it is"),
    ),
    Command(
        "Tables",
        "alter table {t} set unlogged",
        Effects("`ddl`", "unchanged", "unchanged", "unchanged", "unchanged"),
    ),
    Command(
        "Tables",
        "create index on {t} (note)",
        Effects("nothing", "unchanged", "unchanged", "unchanged", "unchanged"),
    ),
    Command(
        "Tables",
        "cluster {t} using {t}_pkey",
        Effects("`copy`", "written again", "written again", "re-index", "unchanged"),
    ),
    Command(
        "Partitions",
        "create table {t}_parts (id int primary key) partition by range (id);"
        " create table {t}_parts_1 partition of {t}_parts for values from (0) to (10)",
        Effects(
            "`ddl` `copy`",
            "written again (`public.t_parts`)",
            "written again (`public.t_parts`)",
            "unchanged",
            "copied",
        ),
    ),
)

HEAD: Final = """\
# What each command does

Each line is a command that a test runs on a table of its own, with two rows, and then looks at what
has changed without any change of a row after it: in the [change log](change-log.md), the [typed
table](../guides/tables.md), its [history](../guides/history.md), an [index](../guides/search.md)
and a [Postgres sink](../guides/postgres-sink.md). The source has the event triggers of
[schema changes](../guides/schema-changes.md).

- log: the rows that it gets, in order. After a `copy` come the rows of the table.
- typed table, history: *altered*, in place; *written again*, from the log, in one commit. A name in
  parentheses is that of another table.
- index: *field*, a new one or another name of one, which later changes of rows fill; *re-index*, a
  new index is due: `pgstream index run` builds it, unless the alias has `reindex: manual`.
- replica, the tables in the target of the sink: *altered*, as the source was; *copied*, with a copy
  of the rows after it; *left as it is*, so that it differs from the source. A new table there is
  made before its first row.
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
