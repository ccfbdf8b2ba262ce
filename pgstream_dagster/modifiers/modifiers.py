"""The modifiers of one place, one after the other, for changes of any table. No I/O of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.config.transformers import LiteralString, Null, Transformer
from pgstream_dagster.errors import NewColumn, NoSuchModifier, RulesRefused
from pgstream_dagster.modifiers.check import check
from pgstream_dagster.modifiers.keys import Secrets
from pgstream_dagster.modifiers.table import (
    Names,
    TableModifier,
    TableRules,
    names_of,
    rules_of,
)
from pgstream_dagster.schema.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema


class Modifiers:
    """
    What the modifiers of a place make of a change. One thread uses it, and closes it.

    A version of a table is checked and compiled at its first change, and remembered.

    Shape:
        names: the modifiers, in the order in which changes pass through them.
        versions: the schemas of the log, oldest first and each as often as it began to hold, so
            that a rule follows table and column through renames, to later names and to former
            ones; those of the changes themselves are added.
        key, environment: for `settings.modifier_key`, and for variables that rules name.
        before_log: what they give is landed. A column that is left out stays in the schema,
            and is NULL in every row; a rule for a column that the table never had is refused; and
            a rule follows to later names only, for what was landed under former ones stays.
    """

    def __init__(
        self,
        configs: Mapping[str, ModifierConfig],
        names: Sequence[str],
        key: bytes | None = None,
        environment: Mapping[str, str] | None = None,
        versions: Iterable[TableSchema] = (),
        *,
        before_log: bool = False,
    ) -> None:
        for name in names:
            if name not in configs:
                raise NoSuchModifier(name, sorted(configs))
        self._configs = {name: configs[name] for name in names}
        self._secrets = Secrets(key, environment or {})
        self._before_log = before_log
        self._versions: dict[tuple[int, int], list[TableSchema]] = {}
        for version in versions:
            self._of_relation(version).append(version)
        self._grown: set[tuple[int, int]] = set()
        self._compiled: dict[tuple[int, str, str], tuple[TableModifier, ...]] = {}

    def change(self, change: Change) -> Change | None:
        """
        The change as it may leave; `None` if nothing of it may: a message, whose text is free.

        Raises:
            RulesRefused: rules do not fit the table.
            NewColumn: the table has a column without a rule, and the policy is to stop.
            TransformFailed: a value cannot be transformed.
            TransformerAway: the server that a transformer asks does not answer.
            MissingSetting, InvalidSetting: a secret.
        """
        if not self._configs:
            return change
        if change.schema is None or change.op == Op.MESSAGE:
            return None
        for table in self.tables(change.schema):
            change = table.change(change)
        return change

    def schema(self, schema: TableSchema) -> TableSchema:
        """The schema of the changes that come out, for a sink that makes tables."""
        tables = self.tables(schema)
        return tables[-1].schema if tables else schema

    def transformed(self, schema: TableSchema) -> set[str]:
        """The columns of a version whose values are changed. Raises as `change`."""
        return {name for table in self.tables(schema) for name in table.rules}

    def close(self) -> None:
        """End the sessions with servers that transformers ask; never raises."""
        self._secrets.sessions.close()

    def tables(self, schema: TableSchema) -> tuple[TableModifier, ...]:
        """The modifiers that do something to a table, in their order. Raises as `change`."""
        compiled = self._compiled.get(schema.version)
        if compiled is None:
            compiled = self._compiled[schema.version] = tuple(self._compile(schema))
        return compiled

    def _compile(self, schema: TableSchema) -> Iterable[TableModifier]:
        """Each for the schema that reaches it."""
        names, before_log = names_of(self._learn(schema)), self._before_log
        for name, config in self._configs.items():
            table = compiled(name, config, schema, names, self._secrets, before_log=before_log)
            if table is not None:
                yield table
                schema = table.schema

    def _learn(self, schema: TableSchema) -> Sequence[TableSchema]:
        """
        The versions of a relation that give this one names; it is the newest if it was not there.

        All of them: who writes a rule knows the present names, and the log has rows under others.
        Before the log those up to this one, unless a table goes back to it after versions that were
        not given.
        """
        versions = self._of_relation(schema)
        ends = [end for end, v in enumerate(versions, start=1) if v.version == schema.version]
        relation = (schema.epoch, schema.relation_id)
        if not ends:
            versions.append(schema)
            self._grown.add(relation)
            for version in versions:
                self._compiled.pop(version.version, None)
            return versions
        if not self._before_log:
            return versions
        return [*versions, schema] if relation in self._grown else versions[: ends[-1]]

    def _of_relation(self, schema: TableSchema) -> list[TableSchema]:
        return self._versions.setdefault((schema.epoch, schema.relation_id), [])


def compiled(
    modifier: str,
    config: ModifierConfig,
    schema: TableSchema,
    names: Names,
    secrets: Secrets,
    *,
    before_log: bool = False,
) -> TableModifier | None:
    """
    A modifier for one version of a table; `None` if its rules do not name the table.

    `before_log`: as in `Modifiers`.

    Raises:
        RulesRefused
        NewColumn
        MissingSetting, InvalidSetting: a secret.
    """
    findings = check(modifier, config, schema, names, before_log=before_log)
    problems = [str(finding) for finding in findings if finding.blocks]
    if problems:
        raise RulesRefused(modifier, schema.full_name, problems)
    table = rules_of(config, schema, names)
    if config.new_columns == "stop" and table.unlisted:
        raise NewColumn(modifier, schema.full_name, table.unlisted)
    if before_log:
        table = _with_nulls(table, schema)
    if table.is_empty:
        return None
    return TableModifier(modifier, config, schema, table, secrets, before_log=before_log)


def _with_nulls(table: TableRules, schema: TableSchema) -> TableRules:
    """
    The rules with NULLs for the columns that are left out.

    And for those that the catalog could not tell apart, whose rules may go by a former name. Their
    rows follow a gap, so nobody reads them before the table's next copy; of a key they are empty,
    which may not be NULL.
    """
    unknown: set[str] = set()
    if table.is_named:
        unknown = {c.name for c in schema.columns if c.attnum <= 0 and c.name not in table.rules}
    stand_ins: dict[str, Transformer] = {
        **dict.fromkeys(table.dropped | unknown, Null(name="null")),
        **dict.fromkeys(
            unknown.intersection(schema.key), LiteralString(name="literal_string", literal="")
        ),
    }
    return replace(table, rules={**table.rules, **stand_ins}, dropped=frozenset())
