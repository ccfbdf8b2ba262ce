"""Whether the modifiers of `source.modifiers` fit a source, before a slot keeps WAL for it."""

from __future__ import annotations

from pgstream_dagster.config import SourceConfig
from pgstream_dagster.errors import RulesRefused
from pgstream_dagster.modifiers.rows import LogModifiers
from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.patterns import TablePattern, canonical
from pgstream_dagster.schema.changes import FIRST_EPOCH
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.interrupt import Session
from pgstream_dagster.source.preflight import read_facts, read_server
from pgstream_dagster.source.preflight.facts import Scope


def require_fitting_source(rules: Rules, catalog: Session, source: SourceConfig) -> None:
    """
    Refuse rules that do not fit a source which `setup` has not set up.

    Raises:
        RulesRefused, NewColumn
    """
    if not rules.is_empty:
        facts = read_facts(catalog, source, read_server(catalog, source))
        require_fitting(rules, catalog, facts.scope, FIRST_EPOCH)


def require_fitting(rules: Rules, catalog: Session, scope: Scope, epoch: int) -> None:
    """
    Refuse rules that do not fit the tables of a source which the log has nothing of.

    Raises:
        RulesRefused, NewColumn
    """
    if rules.is_empty:
        return
    names: set[str] = set()
    with LogModifiers(rules) as modifiers:
        for oid in scope.relation_ids:
            columns = scope.existing[oid].columns if oid in scope.existing else None
            schema = describe(catalog, epoch, oid, columns)
            names.add(schema.full_name)
            modifiers.schema(schema)
    for modifier, config in rules.configs.items():
        for pattern in (*config.transform, *config.drop):
            if TablePattern.parse(pattern).is_exact and canonical(pattern) not in names:
                raise RulesRefused(modifier, canonical(pattern), ["it is not published"])
