"""The log read by position: what a snapshot shows, and what was landed between two watermarks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaGateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgstream_dagster.changelog import log_files, replay
from pgstream_dagster.changelog import spans as module_of_spans
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.changelog.spans import ROWS, between, is_before, spans
from pgstream_dagster.changelog.table_specs import create
from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.errors import FilesAway
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import COPY_ORDINAL, GAP_ORDINAL, Op
from pgstream_dagster.schema.layout import CHANGES_DDL
from tests.support.reference.change import Change
from tests.support.reference.history import EPOCH, RELATION_ID, change, schema, table, text

V1 = schema(text("id", 1))
OTHER = 5


def row(op: Op, lsn: int, ordinal: int, **values: Any) -> Change:
    return change(op, lsn, ordinal, schema_id=V1.schema_id, key=("1",), **values)


def ending(end_lsn: int, *changes: Change) -> pa.Table:
    """Changes as they are landed; `end_lsn` as given."""
    made = table(changes)
    ends = pa.array([end_lsn] * len(changes), pa.int64())
    return made.set_column(made.schema.get_field_index("end_lsn"), "end_lsn", ends)


@pytest.fixture(params=["listed by Kernel", "read by Spark's Delta"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of few files, and one of many."""
    monkeypatch.setattr(log_files, "FEW_FILES", 32 if request.param.startswith("listed") else 0)


@pytest.fixture
def lake(tmp_path: Path, gateway: JavaGateway) -> Lake:
    lake = Lake(str(tmp_path / "a {b} [c-d] *? e=f %20 ü"))
    create(lake, gateway)
    return lake


@pytest.fixture
def log(lake: Lake, gateway: JavaGateway) -> Lake:
    """
    Transactions that commit at 100, 200, 300 and end 8 later; a copy from 200, landed last; a gap.
    """
    changes = ChangeLog(lake, "shop", gateway)
    changes.start(EPOCH, Lsn(100))
    writer = changes.writer(EPOCH)
    for lsn in (100, 200, 300):
        other = row(Op.INSERT, lsn, 1, relation_id=OTHER)
        writer.commit([ending(lsn + 8, row(Op.UPDATE, lsn, 0), other)], Lsn(lsn + 8))
    writer.commit([ending(400, change(Op.GAP, 400, GAP_ORDINAL))], Lsn(400))
    writer.close()
    copy_at(changes, lake, 200)
    changes.close()
    return lake


def copy_at(changes: ChangeLog, lake: Lake, lsn: int) -> Path:
    """A copy of one row; the file that has it, beside one with the marker."""
    marker = parquet.write(ending(lsn, change(Op.COPY, lsn, COPY_ORDINAL)), lake.change_log)
    read = row(Op.READ, lsn, COPY_ORDINAL + 1)
    file = parquet.write(ending(lsn, read), lake.change_log)
    changes.append_copy(
        [marker, file],
        epoch=EPOCH,
        relation_id=RELATION_ID,
        consistent_point=Lsn(lsn),
        table="public.t",
    )
    path = uri.local(file.path)
    assert path is not None
    return path


def summary(changes: DataFrame) -> list[tuple[str, int, int]]:
    rows = changes.select("op", "commit_lsn", "relation_id").collect()
    return sorted((row.op, row.commit_lsn, row.relation_id) for row in rows)


@pytest.mark.long
def test_history_of_a_relation_has_its_copies_and_nothing_of_others(
    spark: SparkSession, log: Lake
) -> None:
    history = replay.relation_changes(spark, log, EPOCH, RELATION_ID)
    assert [op for op, *_ in summary(history)] == [
        "copy",
        "gap",
        "read",
        "update",
        "update",
        "update",
    ]
    assert {oid for *_, oid in summary(history)} == {RELATION_ID}
    assert summary(replay.relation_changes(spark, log, EPOCH + 1, RELATION_ID)) == []


def test_a_pinned_history_is_of_one_version_while_a_relation_is_copied_again(
    spark: SparkSession, log: Lake, gateway: JavaGateway
) -> None:
    history, _ = replay.history_and_spans(spark, log, EPOCH, [RELATION_ID], before=Lsn(500))
    before = summary(history)
    changes = ChangeLog(log, "shop", gateway)
    copy_at(changes, log, 250)
    changes.close()
    assert summary(history) == before
    assert len(summary(replay.history(spark, log, EPOCH, [RELATION_ID]))) == len(before) + 2


def test_spans_are_the_same_whether_statistics_or_rows_say_them(
    spark: SparkSession, log: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is more exact than rows are together: of each version, these are counted as one."""
    is_large = log_files.FEW_FILES == 0
    monkeypatch.setattr(log_files, "FEW_FILES", 3 if is_large else 32)  # those to read are few
    oids = [RELATION_ID, OTHER]
    for before in (Lsn(200), Lsn(401)):
        history, by_files = replay.history_and_spans(spark, log, EPOCH, oids, before=before)
        by_rows = spans(history)
        assert by_files.keys() == by_rows.keys() == set(oids)
        for relation_id, span in by_files.items():
            inside = history.where(between(span.start, span.stop) & F.col("op").isin(list(ROWS)))
            changed = inside.where((F.col("op") != "read") & (F.col("relation_id") == relation_id))
            assert changed.count() <= span.changed_rows <= by_rows[relation_id].changed_rows
            assert replace(span, changed_rows=0) == replace(by_rows[relation_id], changed_rows=0)


def test_a_copy_that_nothing_follows_is_read_once(
    spark: SparkSession, lake: Lake, gateway: JavaGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("rows were read for spans")

    changes = ChangeLog(lake, "shop", gateway)
    changes.start(EPOCH, Lsn(100))
    copy_at(changes, lake, 200)
    changes.close()
    monkeypatch.setattr(log_files, "FEW_FILES", 1)
    monkeypatch.setattr(module_of_spans, "_groups", never)
    history, by_files = replay.history_and_spans(spark, lake, EPOCH, [RELATION_ID], before=Lsn(500))
    [span] = by_files.values()
    assert (span.start, span.copied_rows) == (Place(Lsn(200), COPY_ORDINAL), 1)
    assert [op for op, *_ in summary(history)] == ["copy", "read"]
    _, by_files = replay.history_and_spans(spark, lake, EPOCH, [OTHER], before=Lsn(500))
    assert by_files == {}


def test_a_history_needs_no_file_that_has_only_rows_of_others(
    spark: SparkSession, log: Lake, gateway: JavaGateway
) -> None:
    changes = ChangeLog(log, "shop", gateway)
    copied = copy_at(changes, log, 250)
    changes.close()
    history = replay.history(spark, log, EPOCH, [OTHER])
    rows = history.where(is_before(EPOCH, Lsn(400)) & F.col("op").isin(list(ROWS)))
    keyed = rows.where(F.col("key").isNotNull() & F.col("old_key").isNull())
    for read in history, rows, keyed, fold(history, [V1]):
        assert len(read.inputFiles()) == 3
    copied.unlink()
    assert len(summary(keyed)) == 3


def test_new_changes_need_no_file_of_others(spark: SparkSession, log: Lake) -> None:
    assert len(replay.changes(spark, log, EPOCH, Lsn(208), Lsn(308)).inputFiles()) == 1
    nothing = replay.changes(spark, log, EPOCH, Lsn(500), Lsn(600))
    assert not nothing.inputFiles()
    assert summary(nothing) == []
    assert nothing.dtypes == spark.createDataFrame([], CHANGES_DDL).dtypes


def test_what_commits_exactly_at_a_point_is_not_in_front_of_it_and_a_copy_there_is(
    spark: SparkSession, log: Lake
) -> None:
    history = replay.relation_changes(spark, log, EPOCH, RELATION_ID, before=Lsn(200))
    assert [(op, lsn) for op, lsn, _ in summary(history)] == [
        ("copy", 200),
        ("read", 200),
        ("update", 100),
    ]


def test_stretches_between_watermarks_hold_every_landed_change_once(
    spark: SparkSession, log: Lake
) -> None:
    watermarks = [Lsn(lsn) for lsn in (100, 108, 250, 308, 400)]
    stretches = [
        summary(replay.changes(spark, log, EPOCH, after, upto))
        for after, upto in pairwise(watermarks)
    ]
    assert stretches == [
        [("insert", 100, OTHER), ("update", 100, RELATION_ID)],
        [("insert", 200, OTHER), ("update", 200, RELATION_ID)],
        [("insert", 300, OTHER), ("update", 300, RELATION_ID)],
        [("gap", 400, RELATION_ID)],
    ]


def test_a_file_that_is_away_is_named(spark: SparkSession, log: Lake) -> None:
    change_log = Path(log.change_log.removeprefix("file:"))
    [file, *others] = [str(path) for path in change_log.glob("*.parquet")]
    assert log_files.read_files(spark, [file, *others]).count() == 9
    Path(file).unlink()
    for files in ([file], [file, *others]):
        with pytest.raises(FilesAway):
            log_files.read_files(spark, files)


@pytest.mark.long
def test_rows_that_were_erased_stay_away(spark: SparkSession, log: Lake) -> None:
    table = f"delta.`{log.change_log}`"
    for name, value in (("appendOnly", "false"), ("enableDeletionVectors", "true")):
        spark.sql(f"alter table {table} set tblproperties ('delta.{name}' = '{value}')")
    spark.sql(f"delete from {table} where relation_id = {OTHER} and commit_lsn = 100")
    of_other = replay.relation_changes(spark, log, EPOCH, OTHER)
    assert [lsn for _, lsn, _ in summary(of_other)] == [200, 300]


def test_a_name_may_have_any_character(spark: SparkSession, lake: Lake, gateway: JavaGateway):
    changes = ChangeLog(lake, "shop", gateway)
    changes.start(EPOCH, Lsn(100))
    writer = changes.writer(EPOCH)
    made = change(Op.INSERT, 200, 0, schema_id=V1.schema_id, key=("1",), relation="a\u2028\x85b")
    writer.commit([ending(208, made)], Lsn(208))
    writer.close()
    changes.close()
    assert [row.relation for row in log_files.read_log(spark, lake).collect()] == ["a\u2028\x85b"]
