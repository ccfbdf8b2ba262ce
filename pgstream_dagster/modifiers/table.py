"""
The rules of a modifier for one version of a table, compiled: changes in, changes out. Pure.

A column is known by its attnum: a rule follows it through renames. What depends on another column
reads it from the same image, as it was before its own transformation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.config.transformers import Noop, Null, Transformer
from pgstream_dagster.errors import RulesRefused, TransformerAway, TransformFailed
from pgstream_dagster.modifiers.keys import Secrets
from pgstream_dagster.modifiers.transform import Transform, transform
from pgstream_dagster.modifiers.unfit import Away, NotSent, Unanswered, Unfit
from pgstream_dagster.patterns import TablePattern
from pgstream_dagster.schema.change import Change, Image, Key
from pgstream_dagster.schema.table import Column, TableSchema


@dataclass(frozen=True, slots=True)
class Names:
    """
    The names that a table and its columns have, and had.

    Shape:
        tables: namespace and name.
        columns: by attnum, the present name first.
    """

    tables: frozenset[tuple[str, str]]
    columns: Mapping[int, Sequence[str]]


@dataclass(frozen=True, slots=True)
class TableRules:
    """
    What a modifier says about one version of a table.

    Shape:
        rules: column to rule, of the columns that have one.
        dropped: columns that are left out because a rule or the policy says so.
        unlisted: columns of a table under `transform` that nothing names.
        present: every name that a column has or had, to its present one.
        is_named: whether a pattern under `transform` or `drop` matches the table.
    """

    rules: Mapping[str, Transformer]
    dropped: frozenset[str]
    unlisted: tuple[str, ...]
    present: Mapping[str, str]
    is_named: bool

    @property
    def is_empty(self) -> bool:
        """Whether changes of the table pass as they are."""
        return not self.dropped and all(isinstance(rule, Noop) for rule in self.rules.values())


def names_of(versions: Iterable[TableSchema]) -> Names:
    """The names in versions of one relation, oldest first."""
    names: dict[int, list[str]] = {}
    tables: set[tuple[str, str]] = set()
    for version in versions:
        tables.add((version.namespace, version.name))
        for column in version.columns:
            former = names.setdefault(column.attnum, [])
            if column.name in former:
                former.remove(column.name)
            former.insert(0, column.name)
    return Names(frozenset(tables), names)


def rules_of(config: ModifierConfig, schema: TableSchema, names: Names) -> TableRules:
    """
    The rules for a table: those of its own name go over those of patterns, column by column.

    A rule follows table and column through renames: a new name shows no value that the old one hid.
    """
    by_pattern = [config.transform[p] for p in _matching(config.transform, names)]
    merged: dict[str, Transformer] = {}
    for given in by_pattern:
        merged = {**given, **merged}
    drops = _matching(config.drop, names)
    dropping = {column for pattern in drops for column in config.drop[pattern]}
    present = {name: c.name for c in schema.columns for name in names.columns.get(c.attnum, ())}
    present.update({column.name: column.name for column in schema.columns})
    rules: dict[str, Transformer] = {}
    dropped: set[str] = set()
    unlisted: list[str] = []
    for column in schema.columns:
        known_names = names.columns.get(column.attnum, (column.name,))
        rule = next((merged[name] for name in known_names if name in merged), None)
        if not dropping.isdisjoint(known_names):
            dropped.add(column.name)
        elif rule is not None:
            rules[column.name] = rule
        elif by_pattern:
            unlisted.append(column.name)
    if config.new_columns == "drop":
        dropped.update(unlisted)
    is_named = bool(by_pattern or drops)
    return TableRules(rules, frozenset(dropped), tuple(unlisted), present, is_named)


def _matching(patterns: Iterable[str], names: Names) -> list[str]:
    """The patterns that match a table, its own name first, else as in the file."""
    parsed = [(pattern, TablePattern.parse(pattern)) for pattern in patterns]
    matching = [(p, t) for p, t in parsed if any(t.matches(*name) for name in names.tables)]
    return [p for p, _ in sorted(matching, key=lambda pair: not pair[1].is_exact)]


@dataclass(frozen=True, slots=True)
class _ColumnTransform:
    """The transform of one column, with where its parameters come from."""

    transformer: str
    apply: Transform
    dynamic: Mapping[str, str]


class TableModifier:
    """Transforms the changes of one version of a table."""

    def __init__(
        self,
        modifier: str,
        config: ModifierConfig,
        schema: TableSchema,
        table: TableRules,
        secrets: Secrets,
        *,
        before_log: bool = False,
    ) -> None:
        self.name, self.on_error = modifier, config.on_error
        self._before_log = before_log
        self._key, self._dropped, self._given = schema.key, table.dropped, schema
        columns = {column.name: column for column in schema.columns}
        self._columns = columns.keys()
        self.rules = {n: rule for n, rule in table.rules.items() if not isinstance(rule, Noop)}
        """Column to rule, of the columns that are transformed."""
        self._transforms = {
            name: _compiled(rule, columns[name], table.present, secrets)
            for name, rule in self.rules.items()
        }

    @cached_property
    def schema(self) -> TableSchema:
        """
        The schema of what comes out: without left-out columns, and without values in it.

        Raises:
            TransformFailed, TransformerAway: for the value that older rows show.
        """
        columns = tuple(
            self._without_values(column)
            for column in self._given.columns
            if column.name not in self._dropped
        )
        return replace(self._given, columns=columns)

    def change(self, change: Change) -> Change:
        """
        The change with its columns transformed in every image and both keys.

        Raises:
            TransformFailed: a value cannot be transformed, or a column that its transformer reads
                was not sent.
            TransformerAway: the server that a transformer asks does not answer.
        """
        before, after = change.before, change.after
        # what an update did not send is as in the old image, where that has it
        around = after if after is None or before is None else {**before, **after}
        key, old_key = self._modified_key(change.key), self._modified_key(change.old_key)
        return msgspec.structs.replace(
            change,
            schema=self.schema,
            before=self._modified_image(before, before),
            after=self._modified_image(after, around),
            key=key,
            old_key=None if old_key == key else old_key,
            payload=None,  # of a ddl row: its text and defaults are not transformed
        )

    def _modified_image(self, image: Image | None, around: Image | None) -> Image | None:
        if image is None or around is None:
            return None
        if not image.keys() <= self._columns:
            raise self._unknown(image.keys() - self._columns)
        return {
            name: self._value(name, value, around)
            for name, value in image.items()
            if name not in self._dropped
        }

    def _modified_key(self, key: Key | None) -> Key | None:
        if key is None:
            return None
        image = dict(zip(self._key, key, strict=True))
        return tuple(self._key_value(name, value, image) for name, value in image.items())

    def _key_value(self, name: str, value: str | None, around: Image) -> str | None:
        """A value of a key, which does not become NULL: rows would be one, or none."""
        result = self._value(name, value, around)
        if result is None and value is not None:
            column = self._transforms[name]
            raise self._failure(name, column, Unfit("a value of the key would become NULL"))
        return result

    def _value(self, name: str, value: str | None, around: Image) -> str | None:
        column = self._transforms.get(name)
        if column is None or value is None:
            return value
        try:
            return column.apply(value, _dynamic(column.dynamic, around))
        except Away as failure:
            raise TransformerAway(self.name, column.transformer, failure.reason) from None
        except Unanswered as failure:
            raise self._failure(name, column, failure) from None
        except Unfit as failure:
            match self.on_error:
                case "null":
                    return None
                case "pass-through":
                    return value
                case _:
                    raise self._failure(name, column, failure) from None

    def _unknown(self, names: Iterable[str]) -> RulesRefused:
        """Of columns that the version of a change does not have, nothing says what to do."""
        problems = [f"{name!r}: the version of the change has no such column" for name in names]
        return RulesRefused(self.name, self._given.full_name, sorted(problems))

    def _failure(self, name: str, column: _ColumnTransform, failure: Unfit) -> TransformFailed:
        return TransformFailed(self.name, name, column.transformer, failure.reason)

    def _without_values(self, column: Column) -> Column:
        """
        A column whose default is not shown, and whose value of older rows is transformed.

        A transform that reads other columns cannot know theirs: older rows then show NULL. What the
        log has of a column that was modified before it stays there as it is.
        """
        transformed = self._transforms.get(column.name)
        if transformed is None:
            return column
        missing = column.missing
        if missing is not None and not (self._before_log and column.modified):
            missing = None if transformed.dynamic else self._value(column.name, missing, {})
        not_null = column.not_null and not isinstance(self.rules[column.name], Null)
        return replace(column, missing=missing, default=None, not_null=not_null)


def _compiled(
    rule: Transformer, column: Column, present: Mapping[str, str], secrets: Secrets
) -> _ColumnTransform:
    apply = transform(rule, column.value_type, column.type_name, secrets)
    dynamic = {parameter: present[name] for parameter, name in rule.dynamic.items()}
    return _ColumnTransform(rule.name, apply, dynamic)


def _dynamic(columns: Mapping[str, str], around: Image) -> Mapping[str, str | None]:
    """The parameters that other columns give. Raises `NotSent`."""
    for column in columns.values():
        if column not in around:
            raise NotSent(column)
    return {name: around[column] for name, column in columns.items()}
