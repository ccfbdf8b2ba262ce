"""The change log: what is committed is there once, with its watermark; nobody else's is touched."""

from __future__ import annotations

import pytest
from py4j.java_gateway import JavaGateway
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.delta import parquet
from pgstream_dagster.errors import CopyOvertaken, NotSetUp, WriterReplaced
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema import layout
from tests.support.plugins.lake import changes


@pytest.fixture
def log(lake: Lake, gateway: JavaGateway):
    opened = ChangeLog(lake, "shop", gateway)
    opened.start(1, Lsn(1000))
    yield opened
    opened.close()


def copied(lake: Lake, count: int, point: int) -> list[parquet.DataFile]:
    rows = changes(count, end_lsn=point, op=["copy"] + ["read"] * (count - 1))
    return [parquet.write(rows, lake.change_log)]


def test_a_lake_without_tables_is_not_set_up(tmp_path, gateway: JavaGateway):
    with pytest.raises(NotSetUp, match="'shop'"):
        ChangeLog(Lake(str(tmp_path)), "shop", gateway).watermark(1)


def test_a_log_without_a_watermark_has_no_writer(lake: Lake, gateway: JavaGateway):
    log = ChangeLog(lake, "shop", gateway)
    assert log.watermark(1) is None
    with pytest.raises(NotSetUp):
        log.writer(1)


def test_the_first_watermark_is_set_once(log: ChangeLog):
    assert log.watermark(1) == Lsn(1000)
    with pytest.raises(WriterReplaced):
        log.start(1, Lsn(2000))
    assert log.watermark(1) == Lsn(1000)


def test_an_epoch_may_start_with_gaps(log: ChangeLog, lake: Lake, spark: SparkSession):
    started = log.start(2, Lsn(500), changes(2, end_lsn=500, op=["gap", "gap"]))
    assert (started.rows, log.watermark(2)) == (2, Lsn(500))
    assert spark.read.format("delta").load(lake.change_log).count() == 2


def test_a_commit_brings_rows_and_watermark_together(
    log: ChangeLog, lake: Lake, spark: SparkSession
):
    writer = log.writer(1)
    tables = [changes(3, end_lsn=2000), layout.no_changes(), changes(2, end_lsn=3000)]
    committed = writer.commit(iter(tables), Lsn(3000))
    writer.close()
    assert (committed.rows, committed.files, committed.end_lsn) == (5, 2, Lsn(3000))
    assert log.watermark(1) == writer.watermark == Lsn(3000)
    rows = spark.read.format("delta").load(lake.change_log)
    assert rows.count() == 5
    assert rows.where("landed_at is null or landed_at > now()").count() == 0
    first = rows.where("ordinal = 1 and end_lsn = 2000").first()
    assert first is not None
    assert first.after == {"id": "1", "note": None, "text": "row 1"}


def test_a_position_without_changes_is_recorded_once(log: ChangeLog):
    writer = log.writer(1)
    version = writer.advance(Lsn(5000)).version
    assert log.watermark(1) == Lsn(5000)
    assert writer.advance(Lsn(5000)).version == version
    assert writer.advance(Lsn(4000)).end_lsn == Lsn(5000)
    writer.close()


def test_a_commit_behind_the_watermark_is_our_error(log: ChangeLog):
    with pytest.raises(ValueError, match="watermark is 0/3E8"):
        log.writer(1).commit([changes(1, end_lsn=900)], Lsn(900))


def test_the_first_of_two_writers_is_replaced(log: ChangeLog, lake: Lake, spark: SparkSession):
    first, second = log.writer(1), log.writer(1)
    second.commit([changes(4, end_lsn=2000)], Lsn(2000))
    with pytest.raises(WriterReplaced) as refused:
        first.commit([changes(6, end_lsn=2500)], Lsn(2500))
    assert (refused.value.expected, refused.value.actual) == (0x3E8, 0x7D0)
    second.commit([changes(1, end_lsn=3000)], Lsn(3000))
    assert spark.read.format("delta").load(lake.change_log).count() == 5
    second.close()


def test_only_a_writer_that_has_written_is_replaced_while_it_looks(log: ChangeLog):
    """A second stream opens its writer, the first lands: the slot is what refuses the second."""
    first, second = log.writer(1), log.writer(1)
    first.commit([changes(4, end_lsn=2000)], Lsn(2000))
    second.require_current()
    assert second.watermark == Lsn(2000)
    second.commit([changes(1, end_lsn=3000)], Lsn(3000))
    with pytest.raises(WriterReplaced):
        first.require_current()
    log.start(2, Lsn(10))
    with pytest.raises(WriterReplaced, match="shop/2"):
        log.writer(1).require_current()
    second.close()


def test_a_writer_of_equal_progress_is_replaced_too(log: ChangeLog):
    """Its rows are there, landed by the other: taking them for its own would be right by luck."""
    first, second = log.writer(1), log.writer(1)
    second.commit([changes(4, end_lsn=2000)], Lsn(2000))
    with pytest.raises(WriterReplaced):
        first.commit([changes(4, end_lsn=2000)], Lsn(2000))
    second.close()


def test_a_writer_ends_when_the_next_epoch_begins(log: ChangeLog):
    writer = log.writer(1)
    log.start(2, Lsn(10))
    with pytest.raises(WriterReplaced, match="shop/2"):
        writer.commit([changes(1, end_lsn=2000)], Lsn(2000))


def test_pipelines_do_not_meet(log: ChangeLog, lake: Lake, gateway: JavaGateway):
    other = ChangeLog(lake, "other", gateway)
    other.start(1, Lsn(7))
    writer = log.writer(1)
    writer.commit([changes(1, end_lsn=2000)], Lsn(2000))
    assert (other.watermark(1), log.watermark(1)) == (Lsn(7), Lsn(2000))
    writer.close()
    other.close()


def test_a_copy_lands_while_a_writer_is_open(log: ChangeLog, lake: Lake, spark: SparkSession):
    writer = log.writer(1)
    log.append_copy(
        copied(lake, 5, 1500), epoch=1, relation_id=9, consistent_point=Lsn(1500), table="a.b"
    )
    writer.commit([changes(3, end_lsn=2000)], Lsn(2000))
    assert (log.newest_copy(1, 9), log.newest_copy(1, 8)) == (Lsn(1500), None)
    assert log.watermark(1) == Lsn(2000)
    assert spark.read.format("delta").load(lake.change_log).count() == 8
    writer.close()


@pytest.mark.parametrize("point", [1500, 1400])
def test_a_copy_from_the_same_or_an_earlier_point_is_refused(
    log: ChangeLog, lake: Lake, point: int
):
    def append(at: int) -> None:
        files = copied(lake, 5, at)
        log.append_copy(
            files, epoch=1, relation_id=9, consistent_point=Lsn(at), table="public.orders"
        )

    append(1500)
    with pytest.raises(CopyOvertaken, match=r"public\.orders"):
        append(point)
    append(1600)
    assert log.newest_copy(1, 9) == Lsn(1600)


@pytest.mark.long
def test_landing_optimizing_by_spark_and_landing_again_keeps_every_row_once(
    log: ChangeLog, lake: Lake, gateway: JavaGateway, spark: SparkSession
):
    """Names that Spark and Kernel do not share would bring replaced files back at a checkpoint."""
    writer = log.writer(1)
    lsn = 2000

    def land(count: int) -> None:
        nonlocal lsn
        for _ in range(count):
            lsn += 100
            writer.commit([changes(50, end_lsn=lsn)], Lsn(lsn))

    land(60)
    spark.sql(f"optimize delta.`{lake.change_log}`")
    land(60)  # over the checkpoint at 100
    spark.sql(f"optimize delta.`{lake.change_log}`")
    land(3)
    writer.close()
    spark.catalog.clearCache()
    rows = spark.read.format("delta").load(lake.change_log)
    assert rows.count() == rows.select("commit_lsn", "ordinal").distinct().count() == 123 * 50
    again = ChangeLog(lake, "shop", gateway).writer(1)
    assert again.watermark == Lsn(lsn)
    assert sum(1 for _ in again._table.files()) <= 6
