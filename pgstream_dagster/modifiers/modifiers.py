"""The modifiers of a sink, one after the other, for changes of any table. No I/O of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.errors import NewColumn, NoSuchModifier, RulesRefused
from pgstream_dagster.modifiers.check import check
from pgstream_dagster.modifiers.keys import Secrets
from pgstream_dagster.modifiers.table import Names, TableModifier, names_of, rules_of
from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema


class Modifiers:
    """
    What the modifiers of a sink make of a change. One thread uses it, and closes it.

    A version of a table is checked and compiled at its first change, and remembered.

    Shape:
        names: the modifiers, in the order in which changes pass through them.
        versions: the schemas of the log, oldest first, so that a rule follows a column through
            the renames that happened before; those of the changes themselves are added.
        key, environment: for `settings.modifier_key`, and for variables that rules name.
    """

    def __init__(
        self,
        configs: Mapping[str, ModifierConfig],
        names: Sequence[str],
        key: bytes | None = None,
        environment: Mapping[str, str] | None = None,
        versions: Iterable[TableSchema] = (),
    ) -> None:
        for name in names:
            if name not in configs:
                raise NoSuchModifier(name, sorted(configs))
        self._configs = {name: configs[name] for name in names}
        self._secrets = Secrets(key, environment or {})
        self._versions: dict[tuple[int, int], list[TableSchema]] = {}
        for version in versions:
            self._learn(version)
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
        for table in self._tables(change.schema):
            change = table.change(change)
        return change

    def schema(self, schema: TableSchema) -> TableSchema:
        """The schema of the changes that come out, for a sink that makes tables."""
        tables = self._tables(schema)
        return tables[-1].schema if tables else schema

    def close(self) -> None:
        """End the sessions with servers that transformers ask; never raises."""
        self._secrets.sessions.close()

    def _tables(self, schema: TableSchema) -> tuple[TableModifier, ...]:
        compiled = self._compiled.get(schema.version)
        if compiled is None:
            compiled = self._compiled[schema.version] = tuple(self._compile(schema))
        return compiled

    def _compile(self, schema: TableSchema) -> Iterable[TableModifier]:
        """The modifiers that do something to a table, each for the schema that reaches it."""
        names = names_of(self._learn(schema))
        for name, config in self._configs.items():
            table = compiled(name, config, schema, names, self._secrets)
            if table is not None:
                yield table
                schema = table.schema

    def _learn(self, schema: TableSchema) -> Sequence[TableSchema]:
        """The versions of a relation up to this one; it is the newest one if it was not there."""
        versions = self._versions.setdefault((schema.epoch, schema.relation_id), [])
        ids = [version.schema_id for version in versions]
        if schema.schema_id not in ids:
            versions.append(schema)
            return versions
        return versions[: ids.index(schema.schema_id) + 1]


def compiled(
    modifier: str, config: ModifierConfig, schema: TableSchema, names: Names, secrets: Secrets
) -> TableModifier | None:
    """
    A modifier for one version of a table; `None` if its rules do not name the table.

    Raises:
        RulesRefused
        NewColumn
        MissingSetting, InvalidSetting: a secret.
    """
    findings = check(modifier, config, schema, names)
    problems = [str(finding) for finding in findings if finding.blocks]
    if problems:
        raise RulesRefused(modifier, schema.full_name, problems)
    table = rules_of(config, schema, names)
    if config.new_columns == "stop" and table.unlisted:
        raise NewColumn(modifier, schema.full_name, table.unlisted)
    return None if table.is_empty else TableModifier(modifier, config, schema, table, secrets)
