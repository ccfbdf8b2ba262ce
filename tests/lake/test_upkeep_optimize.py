"""`optimize` of a pipeline: its small tables too stay small."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pgstream_dagster.changelog.dead_letters import DeadLetter, DeadLetters, DeadLetterState
from pgstream_dagster.changelog.table_specs import DEAD_LETTERS
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.delta import delta_table
from pgstream_dagster.delta.delta_table import DeltaTable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.optimize import optimize
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import runner
from tests.support.plugins.cluster import psql

pytestmark = pytest.mark.slow


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object) -> Pipeline:
    psql(dsn, "create table t (id bigint primary key)", "insert into t values (1)")
    pipeline = runner.new_pipeline(dsn, tmp_path)
    setup(pipeline)
    index = {"things": IndexConfig(table="public.t")}
    return replace(pipeline, config=pipeline.config.model_copy(update={"search": index}))


@pytest.mark.long
def test_dead_letters_end_up_in_one_file(pipeline: Pipeline) -> None:
    gateway = pipeline.gateway()
    delta_table.create(pipeline.lake.dead_letters, DEAD_LETTERS, gateway)
    with closing(DeadLetters(pipeline.lake, gateway)) as letters:
        for number in range(20):
            key = (str(number),)
            letter = DeadLetter("things-1", str(number), key, 1, Lsn(9), DeadLetterState.REFUSED)
            letters.add([letter])
        optimize(pipeline)
        assert len(letters.open("things-1")) == 20
    assert len(DeltaTable(pipeline.lake.dead_letters, gateway).files()) == 1


@pytest.mark.long
def test_a_pipeline_whose_indexer_never_ran_is_optimized(pipeline: Pipeline) -> None:
    assert optimize(pipeline).steps == 0
