"""
SIGKILL at every named step under a running workload, a restart, and nothing is lost or doubled.

After each: positions and images of the log are what an independent second slot saw committed, once
and in order; the fold of the log is the source; nothing was confirmed to Postgres before it was
durable.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pgstream_dagster import failpoints
from tests.support.harness.case import Case, execute
from tests.support.harness.crash_points import (
    APPROVING,
    BUILDING,
    DELIVERING,
    DELIVERING_TO_KAFKA,
    DELIVERING_TO_POSTGRES,
    IN_SETUP,
    IN_STREAM,
    INDEXING,
    MERGING,
    MERGING_HISTORIES,
    WRITING_FILES,
)
from tests.support.plugins.cluster import ALL

# PGSTREAM_TEST_ALL (`make crash`): every step; else one each.
CHOSEN_IN_SETUP = IN_SETUP if ALL else ["copy.committed:3"]
CHOSEN_IN_STREAM = IN_STREAM if ALL else ["land.commit:4"]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


def test_every_failpoint_has_its_crash() -> None:
    every = [*IN_SETUP, *IN_STREAM, *BUILDING, *INDEXING, *DELIVERING]
    every += [*DELIVERING_TO_KAFKA, *DELIVERING_TO_POSTGRES, *WRITING_FILES]
    every += [*MERGING, *MERGING_HISTORIES, *APPROVING]
    assert {point.partition(":")[0] for point in every} == failpoints.NAMES


@pytest.mark.long
@pytest.mark.parametrize("failpoint", CHOSEN_IN_SETUP)
def test_setup_goes_on_after_a_crash_at(failpoint: str, dsn: str, tmp_path: Path) -> None:
    case = Case(dsn, tmp_path, rate=10)
    case.workload.run(120)  # rows to copy
    with case.watched(), case.workload:
        case.dies("setup", failpoint)
        case.set_up()
        case.workload.wait_for(case.workload.counts["committed"] + 20)
        assert case.settle() > 0


@pytest.mark.long
@pytest.mark.parametrize("failpoint", CHOSEN_IN_STREAM)
def test_stream_goes_on_after_a_crash_at(failpoint: str, dsn: str, tmp_path: Path) -> None:
    case = Case(dsn, tmp_path, truncates=False)
    case.set_up()
    if failpoint == "land.schema":
        execute(dsn, "alter table accounts add column since date default '2026-01-01'")
    with case.watched(), case.workload:
        case.dies("stream", failpoint)
        case.workload.wait_for(case.workload.counts["committed"] + 20)
        assert case.settle() > 0
