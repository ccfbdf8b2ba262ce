"""The rules of a pipeline against its tables: everything that is wrong, and rows as they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.errors import ConfigError, NewColumn
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers.check import Finding, Severity, check
from pgstream_dagster.modifiers.keys import Secrets
from pgstream_dagster.modifiers.modifiers import Modifiers, compiled
from pgstream_dagster.modifiers.table import names_of
from pgstream_dagster.patterns import TablePattern, canonical
from pgstream_dagster.schema.change import Change, Image
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema

Relations = Sequence[Sequence[TableSchema]]
"""The versions of each relation, oldest first."""


def check_all(
    configs: Mapping[str, ModifierConfig], relations: Relations, secrets: Secrets
) -> list[Finding]:
    """All findings about all modifiers and tables, and rules for tables that are not there."""
    return [
        finding
        for name, config in configs.items()
        for finding in _of_modifier(name, config, relations, secrets)
    ]


def _of_modifier(
    name: str, config: ModifierConfig, relations: Relations, secrets: Secrets
) -> Iterator[Finding]:
    present = {versions[-1].full_name for versions in relations}
    for pattern in dict.fromkeys([*config.transform, *config.drop]):
        table = canonical(pattern)
        if TablePattern.parse(pattern).is_exact and table not in present:
            yield Finding(Severity.ERROR, name, table, "", "the log has no copy of this table")
    for versions in relations:
        findings = check(name, config, versions[-1], names_of(versions))
        yield from findings
        if not any(finding.blocks for finding in findings):
            yield from _of_secrets(name, config, versions, secrets)


def _of_secrets(
    name: str, config: ModifierConfig, versions: Sequence[TableSchema], secrets: Secrets
) -> Iterator[Finding]:
    """What the rules need from the environment and do not get."""
    schema = versions[-1]
    try:
        compiled(name, config, schema, names_of(versions), secrets)
    except NewColumn:
        return  # `check` has it, column by column
    except ConfigError as problem:
        yield Finding(Severity.ERROR, name, schema.full_name, "", str(problem))


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """A row as the log has it, and as it leaves."""

    before: Image
    after: Image


def preview(modifiers: Modifiers, schema: TableSchema, rows: Iterable[Image]) -> list[PreviewRow]:
    """
    Rows of a table before and after their modifiers.

    Raises:
        SinkError: as `Modifiers.change`.
    """
    return [PreviewRow(row, _after(modifiers, schema, row)) for row in rows]


def _after(modifiers: Modifiers, schema: TableSchema, row: Image) -> Image:
    copied = Change(
        epoch=schema.epoch,
        commit_lsn=Lsn(0),
        ordinal=0,
        end_lsn=Lsn(0),
        op=Op.READ,
        namespace=schema.namespace,
        relation=schema.name,
        relation_id=schema.relation_id,
        schema=schema,
        key=tuple(row[name] for name in schema.key) or None,
        after=row,
    )
    result = modifiers.change(copied)
    assert result is not None  # only messages do not pass
    return result.after or {}
