"""Each kind of DDL, seen in the log, a typed table, its history, an index and a replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.search.index_status import index_status
from pgstream_dagster.tables.merge import merge_tables
from pgstream_dagster.tables.passes import Merged, MergedTable, Step
from tests.scenarios.ddl_effects import BEFORE, COMMANDS, Effects
from tests.support.harness import runner, search_pipelines
from tests.support.harness.replica import deliver, environment, set_up
from tests.support.lake.log_reader import log_rows
from tests.support.plugins.cluster import psql
from tests.support.plugins.search import ask
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.long, pytest.mark.one_major("newest")]

__all__ = ["environment"]  # a fixture

TABLES = [f"t{number:02}" for number in range(len(COMMANDS))]

FAMILY = """
    select n.nspname || '.' || relname, array(
        select attname || ' ' || format_type(atttypid, atttypmod)
            || case when attnotnull then ' not null' else '' end
        from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped
        order by attnum)
    from pg_class c join pg_namespace n on n.oid = relnamespace
    where relkind in ('r', 'p') and relname ~ '^t[0-9]{2}' order by 1
"""

HISTORY = "__history"

STEPS = {Step.EVOLVED: "altered", Step.REBUILT: "written again", Step.MERGED: "rows merged"}

Family = dict[str, list[str]]


@dataclass(frozen=True)
class Index:
    """The fields of a live index, and why a re-index is due."""

    fields: frozenset[str]
    due: str | None


@dataclass(frozen=True)
class Moment:
    """What there was of all tables."""

    source: Family
    replica: Family
    indices: dict[str, Index]
    log_rows: int


def test_each_command_does_what_the_page_says(
    dsn: str,
    tmp_path: Path,
    spark: SparkSession,
    search_node: Any,
    index_prefix: str,
    environment: dict[str, str],
) -> None:
    for table in TABLES:
        psql(dsn, *(statement.format(t=table) for statement in BEFORE))
    psql(dsn, "create schema other")
    environment["PGSTREAM_SEARCH_URL"] = search_node.url
    pipeline = set_up(dsn, tmp_path, environment, _file(index_prefix))
    replica_dsn = environment["REPLICA_DSN"]
    merge_tables(pipeline)

    def moment() -> Moment:
        indices, replica = _indices(pipeline, search_node, index_prefix), families(replica_dsn)
        return Moment(families(dsn), replica, indices, len(log_rows(pipeline.lake)))

    with runner.streaming(pipeline), search_pipelines.indexing(pipeline) as indexed:
        for table in TABLES:
            search_pipelines.wait_until_indexed(pipeline, index_prefix + table, indexed)
        before = moment()
        for table, command in zip(TABLES, COMMANDS, strict=True):
            psql(dsn, *command.statement.format(t=table).split("; "))
        _wait_for_copies(pipeline)
        for table in TABLES:
            search_pipelines.wait_until_indexed(pipeline, index_prefix + table, indexed)
        copied = _copied(pipeline, before.log_rows)
        until(lambda: copied <= _due(pipeline, index_prefix), seconds=runner.END_SECONDS)
        after = moment()
    merged = merge_tables(pipeline)
    deliver(pipeline, environment)
    final = moment()
    observed = {
        command.statement: _effects(pipeline, table, before, after, final, merged)
        for table, command in zip(TABLES, COMMANDS, strict=True)
    }
    assert observed == {command.statement: command.effects for command in COMMANDS}


def families(dsn: str) -> Family:
    return dict(psql(dsn, FAMILY))


def _file(prefix: str) -> str:
    lines = [f"  {prefix}{t}: {{{{table: public.{t}, reindex: manual}}}}" for t in TABLES]
    return "\n".join(
        [
            "pipeline: {name}",
            "capture: {{catalog_check_seconds: 1, idle_advance_seconds: 1}}",
            "tables: {{history: ['*.*']}}",
            "search:",
            *lines,
            "sinks:",
            "  replica:",
            "    postgres: {{dsn_variable: REPLICA_DSN}}",
        ]
    )


def _indices(pipeline: Pipeline, node: Any, prefix: str) -> dict[str, Index]:
    """The live index of each table."""
    indices = dict[str, Index]()
    for status in index_status(pipeline):
        [live] = status.generations
        [mapping] = ask(node, "GET", f"/{live.index}/_mapping").values()
        fields = frozenset(mapping["mappings"]["properties"])
        indices[status.alias.removeprefix(prefix)] = Index(fields, live.outdated)
    return indices


def _due(pipeline: Pipeline, prefix: str) -> set[str]:
    """The tables whose index is to be built again."""
    statuses = [s for s in index_status(pipeline) if any(g.outdated for g in s.generations)]
    return {status.alias.removeprefix(prefix) for status in statuses}


def _copied(pipeline: Pipeline, since: int) -> set[str]:
    """The tables with an index that were copied again."""
    rows = [row for row in log_rows(pipeline.lake)[since:] if row["op"] == Op.COPY.value]
    return {row["relation"] for row in rows} & set(TABLES)


def _wait_for_copies(pipeline: Pipeline) -> None:
    """Until every table whose changes are missing has been copied again."""
    until(lambda: not _without_copy(pipeline), seconds=runner.END_SECONDS)


def _without_copy(pipeline: Pipeline) -> set[int]:
    last = {
        row["relation_id"]: row["op"]
        for row in log_rows(pipeline.lake)
        if row["op"] in (Op.GAP.value, Op.COPY.value)
    }
    return {relation for relation, op in last.items() if op == Op.GAP.value}


def _effects(
    pipeline: Pipeline, table: str, before: Moment, after: Moment, final: Moment, merged: Merged
) -> Effects:
    ops = [
        row["op"]
        for row in log_rows(pipeline.lake)[before.log_rows :]
        if (row["relation"] or "").startswith(table) and row["op"] != Op.READ.value
    ]
    steps = [done for done in merged.tables if done.name.rpartition(".")[2].startswith(table)]
    histories = [done for done in steps if done.name.endswith(HISTORY)]
    return Effects(
        log=" ".join(f"`{op}`" for op, _ in groupby(ops)) or "nothing",
        table=_steps(table, [done for done in steps if done not in histories]),
        history=_steps(table, histories),
        indexed=_index_effect(before.indices[table], after.indices[table]),
        replica=_replica_effect(table, before, final, is_copied=Op.COPY.value in ops),
    )


def _steps(table: str, steps: Sequence[MergedTable]) -> str:
    return ", ".join(_step(table, done) for done in steps) or "unchanged"


def _step(table: str, done: MergedTable) -> str:
    name = done.name.removesuffix(HISTORY)
    suffix = "" if name == f"public.{table}" else f" (`{name.replace(table, 't')}`)"
    return f"{STEPS.get(done.step, done.step)}{suffix}"


def _index_effect(before: Index, after: Index) -> str:
    effects = [
        *(["field"] if after.fields > before.fields else []),
        *(["re-index"] if after.due else []),
    ]
    return ", ".join(effects) or "unchanged"


def _replica_effect(table: str, before: Moment, final: Moment, *, is_copied: bool) -> str:
    source, held, had = (_family(f, table) for f in (final.source, final.replica, before.replica))
    if held == had:
        return "unchanged" if held == source else "left as it is"
    what = "copied" if is_copied else "altered"
    return what if held == source else f"{what}, not as the source: {held}"


def _family(family: Family, table: str) -> Family:
    return {name: columns for name, columns in family.items() if name.split(".")[1][:3] == table}
