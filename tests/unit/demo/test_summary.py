"""What the demo prints at its end, and when it counts as failed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pgstream_dagster.changelog.land import Landed
from pgstream_dagster.demo.run import Streamed, Summary
from pgstream_dagster.demo.sinks import Compared
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.search.reindex import Reindexed
from pgstream_dagster.search.verify import Difference
from pgstream_dagster.upkeep.differences import TableDifference
from pgstream_dagster.upkeep.reconcile_tables import TypedReconciliation

SAME = Difference(500, 500, 0, 0, 0, ())
AT = Lsn(0x1000)
ROWS = TableDifference(500, 500)
TABLE = TypedReconciliation("public.flights", "public.flights", ROWS, ROWS)
SUMMARY = Summary(
    landed=Landed(AT, version=5, rows=1_000, commits=10),
    events=Streamed(900, 2.0),
    lag_bytes=0,
    log_seconds=np.array([0.1, 0.3]),
    index_seconds=np.array([0.2, 0.4]),
    rebuilt=[Reindexed("flights", "flights-000002", "flights-000001", 500, 0, AT, 0.5, 1.0)],
    indices={"flights": SAME},
    tables=[TABLE],
    delivered=[Compared("Kafka", "1,000 records in 2 topics", None)],
)


def test_every_fact_has_a_line_and_the_verdict_is_the_last() -> None:
    facts = {line[:14].strip(): line[14:] for line in SUMMARY.lines()}
    assert facts["rate"] == "450 changes/s of the events"
    assert facts["rows"] == "500 in 1 tables"
    assert facts["documents"] == "500 behind 1 aliases"
    assert facts["re-index"] == "1,000 documents/s"
    assert facts["latency"] == "commit to index: p50 0.30 s, p99 0.40 s"
    assert facts["source = log"] == facts["log = index"] == facts["log = Kafka"] == "identical"
    assert facts["log = tables"] == "identical"
    assert facts["Kafka"] == "1,000 records in 2 topics"
    assert list(facts)[-1] == "verdict"
    assert facts["verdict"].startswith("PASSED: ")
    assert SUMMARY.identical


@pytest.mark.parametrize(
    "difference",
    [
        replace(SAME, only_in_index=1),
        replace(SAME, only_in_log=1),
        replace(SAME, differing=1),
    ],
)
def test_one_document_that_differs_is_a_failure(difference: Difference) -> None:
    summary = replace(SUMMARY, indices={"distributions": SAME, "flights": difference})
    assert not summary.identical
    assert "log = index   DIFFERENT" in summary.lines()
    assert list(summary.lines())[-1].startswith("verdict       FAILED: ")


def test_one_row_that_differs_is_a_failure() -> None:
    table = replace(TABLE, source=replace(ROWS, differing_count=1))
    summary = replace(SUMMARY, tables=[TABLE, table])
    assert not summary.identical
    assert "source = log  DIFFERENT" in summary.lines()
    assert list(summary.lines())[-1].startswith("verdict       FAILED: ")
    assert {"log = index   identical", "log = tables  identical"} < {*summary.lines()}


def test_one_value_of_a_typed_table_that_differs_is_a_failure() -> None:
    table = replace(TABLE, typed=replace(ROWS, differing_count=1))
    summary = replace(SUMMARY, tables=[TABLE, table])
    assert not summary.identical
    assert {"source = log  identical", "log = tables  DIFFERENT"} < {*summary.lines()}


def test_one_table_that_was_not_compared_is_a_failure() -> None:
    table = TypedReconciliation("public.flights", "public.flights", reason="held")
    summary = replace(SUMMARY, tables=[table])
    assert not summary.identical
    assert {"source = log  DIFFERENT", "log = tables  DIFFERENT"} < {*summary.lines()}
    assert list(summary.lines())[-1].startswith("verdict       FAILED: ")


def test_no_table_at_all_is_a_failure() -> None:
    summary = replace(SUMMARY, tables=[])
    assert not summary.identical
    assert "source = log  DIFFERENT" in summary.lines()


def test_one_change_that_a_target_lacks_is_a_failure() -> None:
    summary = replace(SUMMARY, delivered=[Compared("webhook", "999 changes", "1 missing")])
    assert not summary.identical
    assert "log = webhook DIFFERENT: 1 missing" in summary.lines()
    assert list(summary.lines())[-1].startswith("verdict       FAILED: ")
