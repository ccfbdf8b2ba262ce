"""Changes by day as an asset: one partition per day of commit, rebuilt from the log."""

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from pgstream_dagster.assets.columns import LOG_COLUMNS, SCHEMA, location
from pgstream_dagster.assets.errors import as_dagster_errors
from pgstream_dagster.assets.landing import CHANGE_LOG
from pgstream_dagster.assets.names import Names
from pgstream_dagster.assets.positions import position
from pgstream_dagster.threads import run_cancellable

if TYPE_CHECKING:
    from pgstream_dagster.tables.daily_changes import Replayed

REPLAY: Final = "replay"

DAILY_CHANGES: Final = "daily_changes"

COLUMNS: Final = dg.TableSchema([*LOG_COLUMNS.columns, dg.TableColumn("commit_date", "date")])

POOL: Final = "replay"
"""One run at a time: two of the same days would refuse each other's commit."""

FIRST_DAY: Final = "2026-01-01"
"""Of the partitions by default; a day without changes costs nothing."""


def replay(names: Names, first_day: str = FIRST_DAY) -> dg.AssetsDefinition:
    """The asset of one pipeline; a range of days is one run, each day replaced as a whole."""

    @dg.multi_asset(
        name=names.prefixed(
            "rebuild_days"
        ),  # an op may not have the name of a job: that is `replay`
        specs=[
            names.spec(
                DAILY_CHANGES,
                deps=[names.key(CHANGE_LOG)],
                group_name="landing",
                kinds={"deltalake"},
                metadata={SCHEMA: COLUMNS},
                description="Every change by the day (UTC) of its commit, in a Delta table with a"
                " partition a day; rebuilt from the log, as often as one likes.",
            )
        ],
        partitions_def=dg.DailyPartitionsDefinition(first_day, end_offset=1),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=names.in_instance(POOL),
        required_resource_keys=names.resources,
    )
    def rebuilt(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        """Rebuild the days of this run's partitions."""
        from pgstream_dagster.tables.daily_changes import replay_days

        key, days = names.key(DAILY_CHANGES), context.partition_key_range
        first, last = date.fromisoformat(days.start), date.fromisoformat(days.end)
        with as_dagster_errors():
            pipeline = names.open(context)
            done = run_cancellable(lambda stop: replay_days(pipeline, first, last, stop=stop))
        for day in done.touched:
            rows = {"dagster/row_count": done.rows[day]}
            context.log_event(dg.AssetMaterialization(key, partition=str(day), metadata=rows))
        return dg.MaterializeResult(
            metadata=metadata(done, first, last) | location(pipeline.lake.daily_changes)
        )

    return rebuilt


def metadata(done: "Replayed", first: date, last: date) -> dict[str, Any]:
    """Rows in total and by day, whether the log has all of these days, and its watermark."""
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    rows = {str(day): done.rows.get(day, 0) for day in days}
    return {
        "dagster/row_count": sum(rows.values()),
        "rows_by_day": dg.MetadataValue.table(
            [dg.TableRecord({"day": day, "rows": count}) for day, count in rows.items()]
        ),
        "is_complete": done.is_complete,
        **position("watermark", done.watermark),
    }
