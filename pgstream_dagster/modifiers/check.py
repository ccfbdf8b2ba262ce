"""
Do the rules fit a table? Types, keys, NULLs and lengths, before any value is transformed. Pure.

A finding that blocks stops every change of the table; the others are for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgstream_dagster.config import transformers as rules
from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.config.transformers import Transformer, Uniqueness
from pgstream_dagster.modifiers.table import Names, TableRules, names_of, rules_of
from pgstream_dagster.modifiers.transform import bounds
from pgstream_dagster.modifiers.types import RANGES, is_printed, longest, takes
from pgstream_dagster.patterns import TablePattern, canonical, full_name
from pgstream_dagster.schema.table import Column, TableSchema


class Severity(StrEnum):
    """Whether a finding must be fixed."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a rule; `blocks`: no change of the table passes until it is fixed."""

    severity: Severity
    modifier: str
    table: str
    column: str
    problem: str
    blocks: bool = False

    def __str__(self) -> str:
        return f"{self.column!r}: {self.problem}"


@dataclass(frozen=True, slots=True)
class _Problem:
    column: str
    text: str
    severity: Severity = Severity.ERROR
    blocks: bool = True


def check(
    modifier: str,
    config: ModifierConfig,
    schema: TableSchema,
    names: Names | None = None,
    unique: Sequence[Sequence[str]] = (),
    *,
    before_log: bool = False,
) -> list[Finding]:
    """
    All findings about a modifier and a table, errors first.

    Shape:
        names: the former names of columns; without them the present ones.
        unique: columns of further unique indexes, beside the key.
        before_log: whether the modifier decides what is stored. A column that a rule misses is
            stored as it is then, so a rule for a column that the table never had blocks.
    """
    names = names_of([schema]) if names is None else names
    table = rules_of(config, schema, names)
    problems = [
        *_of_columns(config, schema, table),
        *_of_keys(schema, table, unique),
        *_of_dropped(config, schema, table),
        *_unknown_columns(config, names, table, blocks=before_log),
    ]
    findings = [
        Finding(p.severity, modifier, schema.full_name, p.column, p.text, p.blocks)
        for p in problems
    ]
    return sorted(findings, key=lambda finding: (finding.severity, finding.column))


def _of_columns(
    config: ModifierConfig, schema: TableSchema, table: TableRules
) -> Iterator[_Problem]:
    """Types, values and columns that a rule reads."""
    for column in schema.columns:
        rule = table.rules.get(column.name)
        if rule is None:
            continue
        if not takes(rule, column.value_type):
            yield _Problem(column.name, _wrong_type(rule, column))
            continue
        yield from _of_values(config, column, rule)
        for name in rule.dynamic.values():
            if name not in table.present:
                yield _Problem(column.name, f"it reads column {name!r}, which is not there")


def _wrong_type(rule: Transformer, column: Column) -> str:
    accepted = ", ".join(sorted(type(rule).accepts or ()))
    return (
        f"transformer {rule.name!r} takes {accepted}, and the column is"
        f" {column.type_name} (oid {column.type_oid})"
    )


def _of_values(config: ModifierConfig, column: Column, rule: Transformer) -> Iterator[_Problem]:
    """Results that the column cannot hold."""
    limit = longest(column)
    match rule:
        case rules.LiteralString(literal=literal):
            if not is_printed(literal, column.value_type) or len(literal) > (limit or len(literal)):
                yield _Problem(column.name, f"the literal is no value of {column.type_name}")
        case rules.GreenmaskInteger() | rules.GreenmaskUnixTimestamp():
            least, greatest = RANGES.get(column.value_type, bounds(rule, column.value_type))
            first, last = bounds(rule, column.value_type)
            if not least <= first <= last <= greatest:
                yield _Problem(column.name, f"{first} to {last} does not fit {column.type_name}")
        case rules.Hash(length=length) if limit is not None and length > limit:
            yield _Problem(column.name, f"{length} digits do not fit {column.type_name}")
        case rules.EncryptedAesSiv() | rules.Email() if limit is not None:
            text = f"results are longer than values, and {column.type_name} is limited"
            yield _Problem(column.name, text, Severity.WARNING, blocks=False)
        case rules.Null() if column.not_null:
            yield _Problem(column.name, "the column may not be NULL")
        case rules.PgAnonymizer() if not rule.is_repeatable:
            text = f"{rule.anon_function} gives another result each time"
            yield _Problem(column.name, text, Severity.WARNING, blocks=False)
        case _:
            pass
    if config.on_error == "null" and column.not_null and not isinstance(rule, rules.Noop):
        text = "an error makes it NULL, and the column may not be NULL"
        yield _Problem(column.name, text, Severity.WARNING, blocks=False)


def _of_keys(
    schema: TableSchema, table: TableRules, unique: Sequence[Sequence[str]]
) -> Iterator[_Problem]:
    """What makes rows that differ in their key the same row, or their key unknown."""
    others = {name for columns in unique for name in columns}
    for name, rule in table.rules.items():
        if name in schema.key:
            reads = [c for c in rule.dynamic.values() if table.present.get(c) not in schema.key]
            if reads:
                text = f"it is part of the key and reads {reads[0]!r}, which old rows do not carry"
                yield _Problem(name, text)
            if isinstance(rule, rules.PgAnonymizer) and not rule.is_repeatable:
                text = f"{rule.anon_function} gives a key another value each time"
                yield _Problem(name, text)
            if isinstance(rule, rules.Null):
                yield _Problem(name, "it is part of the key, which cannot be NULL")
                continue
        if rule.allow_uniqueness_loss or name not in {*schema.key, *others}:
            continue
        place = "the key" if name in schema.key else "a unique index"
        match type(rule).uniqueness:
            case Uniqueness.LOSSY:
                text = (
                    f"transformer {rule.name!r} makes different values equal, and the column is"
                    f" part of {place}; use encrypted_aes_siv, or set allow_uniqueness_loss"
                )
                yield _Problem(name, text, blocks=name in schema.key)
            case Uniqueness.NOT_GUARANTEED:
                text = (
                    f"transformer {rule.name!r} may make different values equal, and the column"
                    f" is part of {place}"
                )
                yield _Problem(name, text, Severity.WARNING, blocks=False)
            case Uniqueness.PRESERVED:
                pass


def _of_dropped(
    config: ModifierConfig, schema: TableSchema, table: TableRules
) -> Iterator[_Problem]:
    """Columns that are left out, and those that no rule names."""
    for name in sorted(table.dropped):
        if name in schema.key:
            yield _Problem(name, "it is part of the key and cannot be left out; give it a rule")
    for name in table.unlisted:
        if config.new_columns == "stop":
            yield _Problem(name, "no rule names it, and new_columns is 'stop'", blocks=False)
        elif config.new_columns == "drop":
            text = "no rule names it, so it is left out"
            yield _Problem(name, text, Severity.WARNING, blocks=False)


def _unknown_columns(
    config: ModifierConfig, names: Names, table: TableRules, *, blocks: bool
) -> Iterator[_Problem]:
    """Columns that a rule for this very table names, and that it does not have."""
    full_names = {full_name(*table_name) for table_name in names.tables}
    named = {
        column
        for rules_of_tables in (config.transform, config.drop)
        for pattern, columns in rules_of_tables.items()
        if TablePattern.parse(pattern).is_exact and canonical(pattern) in full_names
        for column in columns
    }
    former = {name for of_column in names.columns.values() for name in of_column}
    for name in sorted(named - table.present.keys()):
        yield _Problem(name, "the table has no such column", blocks=blocks and name not in former)
