"""The commands on the rules of modifiers: check them, and look at what they do to ten rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import click

from pgstream_dagster.cli import commands, render
from pgstream_dagster.cli.exits import ExitCode
from pgstream_dagster.errors import NoSuchModifier

if TYPE_CHECKING:
    from pgstream_dagster.modifiers.check import Finding
    from pgstream_dagster.modifiers.preview import PreviewRow
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.schema.table import TableSchema

ROWS: Final = 10
"""As many as fit a screen."""


@commands.pgstream.group("rules")
@commands.example("pgstream rules check")
def rules_group() -> None:
    """Check the rules of modifiers, and try them on rows."""


@commands.command(
    "pgstream rules check", "pgstream rules check --json", group=rules_group, name="check"
)
@commands.as_json
def rules_check(pipeline: Pipeline, *, json: bool) -> int:
    """
    Check every modifier of pgstream.yaml against the tables in the log.

    Types, keys, columns and secrets; changes nothing. Exits with 1 if any finding is an error.
    """
    from pgstream_dagster.modifiers.check import Severity

    findings = commands.run_with_progress(lambda: check(pipeline))
    click.echo(render.as_json(findings) if json else findings_text(findings))
    has_errors = any(finding.severity is Severity.ERROR for finding in findings)
    return ExitCode.PROBLEM if has_errors else ExitCode.OK


@commands.command(
    "pgstream rules preview public.customers",
    "pgstream rules preview public.customers --modifier mask_people",
    group=rules_group,
    name="preview",
)
@click.argument("table")
@click.option(
    "--modifier",
    "names",
    multiple=True,
    help="A modifier to use; give it again for more.  [default: all, as in the file]",
)
@commands.as_json
def rules_preview(pipeline: Pipeline, table: str, names: tuple[str, ...], *, json: bool) -> None:
    """
    Print ten rows of TABLE before and after its modifiers.

    The rows come from the log and are printed as they are, unmasked, next to what becomes of them.
    """
    rows = commands.run_with_progress(lambda: preview(pipeline, table, names))
    click.echo(render.as_json(rows) if json else preview_text(rows))


def check(pipeline: Pipeline) -> list[Finding]:
    """All findings about the rules of a pipeline."""
    from pgstream_dagster import settings
    from pgstream_dagster.modifiers.keys import Secrets
    from pgstream_dagster.modifiers.preview import check_all

    secrets = Secrets(settings.modifier_key(os.environ), os.environ)
    return check_all(pipeline.config.modifiers, relations(pipeline), secrets)


def preview(pipeline: Pipeline, table: str, names: Sequence[str]) -> list[PreviewRow]:
    """Rows of a table before and after the modifiers of these names, or all of them."""
    from pgstream_dagster import settings
    from pgstream_dagster.modifiers import Modifiers
    from pgstream_dagster.modifiers.preview import preview as operation
    from pgstream_dagster.patterns import canonical
    from pgstream_dagster.tables.read import read_table

    configs = pipeline.config.modifiers
    used = names or tuple(configs)
    if missing := [name for name in used if name not in configs]:
        raise NoSuchModifier(missing[0], sorted(configs))
    versions = [version for versions in relations(pipeline) for version in versions]
    key = settings.modifier_key(os.environ)
    rows = read_table(pipeline, table).rows.limit(ROWS).collect()
    schema = next(v for v in reversed(versions) if v.full_name == canonical(table))
    with closing(Modifiers(configs, used, key, os.environ, versions)) as modifiers:
        return operation(modifiers, schema, [row.asDict() for row in rows])


def relations(pipeline: Pipeline) -> list[list[TableSchema]]:
    """The versions of every relation in the log; those of the oldest copy first."""
    with pipeline.open() as opened:
        copied = opened.copied_relations()
        oids = sorted(copied, key=lambda oid: copied[oid][0])
        return [opened.schema_log.named_versions((opened.epoch, oid)) for oid in oids]


def findings_text(findings: Sequence[Finding]) -> str:
    """Findings for people."""
    if not findings:
        return "the rules fit the tables"
    heads = ["severity", "modifier", "table", "column", "problem"]
    return render.table(
        heads, [[f.severity.value, f.modifier, f.table, f.column, f.problem] for f in findings]
    )


def preview_text(rows: Sequence[PreviewRow]) -> str:
    """The columns that differ, row by row."""
    changed = [
        [number, name, _shown(value), _shown(row.after[name]) if name in row.after else "left out"]
        for number, row in enumerate(rows, start=1)
        for name, value in row.before.items()
        if name not in row.after or row.after[name] != value
    ]
    if not changed:
        return f"{len(rows)} rows, nothing differs"
    return render.table(["row", "column", "before", "after"], changed)


def _shown(value: str | None) -> str:
    return "NULL" if value is None else value
