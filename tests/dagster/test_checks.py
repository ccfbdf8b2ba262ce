"""The checks and the table of daily changes, against a real Postgres and a real lake."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import dagster as dg
import pyarrow as pa
import pytest

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.lsn import Lsn
from tests.support.plugins.cluster import psql

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*dagster_run.*:DeprecationWarning"),
    pytest.mark.one_major("newest"),
]

DRAIN = dg.RunConfig(ops={"land_changes": {"config": {"mode": "drain"}}})


def outcomes(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {
        evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()
    }


def test_sound_log_passes_and_what_is_wrong_is_named(site, spark):
    assert site.run("setup").success
    psql(site.dsn, "update orders set note = 'new' where id <= 10", "delete from customers")
    assert site.run("stream", run_config=DRAIN).success

    evaluations = outcomes(site.run("check"))
    positions = evaluations["positions_without_gap"]
    assert positions.passed
    facts = {name: entry.value for name, entry in positions.metadata.items()}
    assert (facts["rows"], facts["transactions"], facts["missing"]) == (12, 2, 0)
    assert Lsn.parse(facts["watermark"]) == facts["watermark_lsn"] > 0
    assert evaluations["copies_complete"].passed
    assert evaluations["tables_fit"].passed
    assert not evaluations["slot_health"].passed
    assert evaluations["slot_health"].severity is dg.AssetCheckSeverity.WARN
    slot = {name: entry.value for name, entry in evaluations["slot_health"].metadata.items()}
    assert Lsn.parse(slot["confirmed"]) == slot["confirmed_lsn"] > 0
    description = evaluations["slot_health"].description or ""
    assert re.fullmatch(
        r"no process reads the slot, for \d+ s; start the job 'stream'", description
    )

    psql(
        site.dsn,
        f"select pg_drop_replication_slot('{site.slot}')",
        "create table late (id int primary key)",
        "alter table customers drop constraint customers_pkey",
        "alter publication pgstream_shop add table late",
    )
    evaluations = outcomes(site.run("check"))
    assert evaluations["slot_health"].severity is dg.AssetCheckSeverity.ERROR
    assert "there is no slot" in evaluations["slot_health"].description
    assert not evaluations["tables_fit"].passed
    assert (
        "table 'public.customers' has no replica identity" in evaluations["tables_fit"].description
    )
    [row] = evaluations["copies_complete"].metadata["due"].records
    assert row.data == {"table": "public.late", "why": "it has no copy"}


def test_places_that_are_missing_repeated_or_not_yet_due_are_counted(spark):
    rows = [(10, 12, 0), (10, 12, 1), (20, 22, 0), (20, 22, 2), (30, 32, 0), (30, 32, 0)]
    names = ["commit_lsn", "end_lsn", "ordinal"]
    places = spark.createDataFrame(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))))
    assert replay.count_places(places, Lsn(22)) == {
        "rows": 6,
        "transactions": 3,
        "repeated": 1,
        "missing": 1,
        "past_the_watermark": 2,
    }
    assert replay.count_places(places.limit(0), Lsn(22))["rows"] == 0


@pytest.mark.long
def test_day_that_is_replayed_twice_is_the_same(site, spark):
    assert site.run("setup").success
    psql(site.dsn, "update orders set note = 'new' where id <= 10", "delete from customers")
    assert site.run("stream", run_config=DRAIN).success
    today = datetime.now(UTC).date().isoformat()

    def changes() -> list[tuple[str, int]]:
        table = spark.read.format("delta").load(Lake(str(site.folder / "lake")).daily_changes)
        chosen = table.where(table["commit_date"] == today)
        return sorted(
            (row["relation"], row["count"]) for row in chosen.groupBy("relation").count().collect()
        )

    for _ in range(2):
        result = site.run("replay", partition_key=today)
        assert result.success
        assert changes() == [("customers", 2), ("orders", 10)]
    [event] = result.asset_materializations_for_node("rebuild_days")
    assert event.metadata["dagster/row_count"].value == 12
    assert event.metadata["dagster/table_name"].value == "daily_changes"
    assert event.metadata["dagster/uri"].value == f"file:{site.folder}/lake/daily_changes"
