"""The commands that show the versions of a table's schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import click

from pgstream_dagster.cli import commands, render

if TYPE_CHECKING:
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.schema.difference import Difference
    from pgstream_dagster.tables.schema_history import SchemaVersion

TEXT_LENGTH: Final = 88
"""Of a command, with which its line is not wrapped in a wide terminal; --json has all of it."""

NOT_REPORTED: Final = "seen in the rows"
"""Instead of the tag of a command."""


@commands.pgstream.group("schema")
@commands.example("pgstream schema history orders")
def schema_group() -> None:
    """Show how tables were defined, and when that changed."""


@commands.command(
    *("pgstream schema history orders", "pgstream schema history public.orders --json"),
    group=schema_group,
    name="history",
)
@click.argument("table")
@commands.as_json
def schema_history(pipeline: Pipeline, table: str, *, json: bool) -> None:
    """
    Show every version of a table: position, time, command, what changed.

    A version without a command was seen in the copy or the rows: it was made at its position or
    before. Dropped tables are shown, too; one that was created again under its name follows.
    """
    from pgstream_dagster.tables.schema_history import schema_history as operation

    versions = commands.run_with_progress(lambda: operation(pipeline, table))
    shown = [_version_as_json(version) for version in versions]
    click.echo(render.as_json(shown) if json else _history_text(versions))


@commands.command(
    *("pgstream schema diff orders 1 3", "pgstream schema diff orders 16/B374D848"),
    group=schema_group,
    name="diff",
)
@click.argument("table")
@click.argument("start", metavar="FROM")
@click.argument("end", metavar="[TO]", required=False)
@commands.as_json
def schema_diff(pipeline: Pipeline, table: str, start: str, end: str | None, *, json: bool) -> None:
    """
    Show what differs between two versions of a table.

    FROM and TO are numbers of versions as 'schema history' prints them, or positions such as
    16/B374D848, at which the transaction that commits there is over. Without TO: the newest
    version.
    """
    from pgstream_dagster.tables.schema_history import differences_between, version_at
    from pgstream_dagster.tables.schema_history import schema_history as operation

    versions = commands.run_with_progress(lambda: operation(pipeline, table))
    before = version_at(versions, start)
    after = versions[-1] if end is None else version_at(versions, end)
    changed = differences_between(before, after)
    text = "\n".join(map(str, changed)) or "nothing differs"
    whole = {
        "from": _place_as_json(before),
        "to": _place_as_json(after),
        "differences": list(map(_difference_as_json, changed)),
    }
    click.echo(render.as_json(whole) if json else text)


# --- results --------------------------------------------------------------------------------------


def _history_text(versions: Sequence[SchemaVersion]) -> str:
    """`schema history` for people: a paragraph per relation, then a line per version."""

    def relation(version: SchemaVersion) -> tuple[int, int]:
        return version.schema.epoch, version.schema.relation_id

    paragraphs = []
    for (epoch, oid), group in groupby(versions, relation):
        history = list(group)
        head = f"{history[-1].schema.full_name}: oid {oid}, epoch {epoch}"
        paragraphs.append("\n".join([head, *(line for v in history for line in _lines(v))]))
    return "\n\n".join(paragraphs)


def _lines(version: SchemaVersion) -> Iterator[str]:
    tag = NOT_REPORTED if version.ddl is None else version.ddl.tag
    at = version.committed_at
    time = "" if at is None else f"{at.isoformat(sep=' ', timespec='seconds')}  "
    yield f"{version.number:3}  {version.since}  {time}{tag}"
    for difference in version.differences:
        yield f"     {difference}"
    if not version.differences:
        yield "     nothing that is recorded changed"
    if version.ddl is not None and version.ddl.text:
        yield f"     > {_shortened(version.ddl.text)}"


def _shortened(text: str) -> str:
    """A command in one line."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_LENGTH else line[: TEXT_LENGTH - 4] + " ..."


def _version_as_json(version: SchemaVersion) -> dict[str, Any]:
    ddl = version.ddl
    return _place_as_json(version) | {
        "is_exact": version.is_exact,
        "is_drop": version.is_drop,
        "ordinal": None if ddl is None else ddl.ordinal,
        "tag": None if ddl is None else ddl.tag,
        "text": None if ddl is None else ddl.text,
        "differences": list(map(_difference_as_json, version.differences)),
        "schema": version.schema,
    }


def _place_as_json(version: SchemaVersion) -> dict[str, Any]:
    at = version.committed_at
    return {
        "number": version.number,
        "table": version.schema.full_name,
        "epoch": version.schema.epoch,
        "relation_id": version.schema.relation_id,
        "since": version.since,
        "committed_at": None if at is None else at.isoformat(),
    }


def _difference_as_json(difference: Difference) -> dict[str, Any]:
    return render.plain(difference) | {"text": str(difference)}
