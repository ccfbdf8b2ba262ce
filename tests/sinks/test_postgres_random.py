"""A database that changes at random, tables and rows: the target holds what the source holds."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pgstream_dagster.config import SinkConfig
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.sinks.control import sink_letters, sink_status
from pgstream_dagster.upkeep.reconcile_sink import reconcile_sink
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import rows
from tests.support.harness.random_schema import RandomSchema, catch_up_with_copies
from tests.support.harness.replica import deliver, environment
from tests.support.harness.runner import new_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest"), pytest.mark.timeout(900)]

__all__ = ["environment"]  # a fixture

FIRST = int(os.environ.get("PGSTREAM_TEST_SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("PGSTREAM_TEST_COUNT", "1")))
ROUNDS, MOVES = 4, 8


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    made = new_pipeline(dsn, tmp_path)
    sink = {"postgres": {"dsn_variable": "REPLICA_DSN"}}
    config = {"sinks": {"replica": SinkConfig.model_validate(sink)}}
    return replace(made, config=made.config.model_copy(update=config))


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_the_target_follows_a_schema_that_changes_at_random(
    pipeline: Pipeline, dsn: str, replica: str, environment: dict[str, str], seed: int
) -> None:
    with closing(RandomSchema(dsn, seed)) as source:
        source.create()
        setup(pipeline)
        for _ in range(ROUNDS):
            for _ in range(MOVES):
                source.move()
            source.touch()  # so the log has every table's name
            catch_up_with_copies(pipeline, source)
            try:
                deliver(pipeline, environment, every_table=True)
                assert refused(pipeline) == []
                names = [".".join(table) for table in source.tables()]
                held = dict(rows.of_source(replica, names).values())
                assert held == dict(rows.of_source(dsn, names).values())
            except BaseException as error:
                error.add_note(f"{sink_status(pipeline)}")
                error.add_note("\n".join(source.script))
                raise
    done = reconcile_sink(pipeline, "replica", environment=environment)
    assert done.identical, done


def refused(pipeline: Pipeline) -> list[tuple[str, str, str]]:
    letters = sink_letters(pipeline, "replica")
    return [(letter.state.value, letter.relation, letter.reason) for letter in letters]
