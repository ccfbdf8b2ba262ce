"""Tables of the lake: made once, committed to one at a time, whole after a crash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import psutil
import pytest
from py4j.java_gateway import JavaGateway
from pyspark.sql import SparkSession

from pgstream_dagster.changelog import table_specs
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import create
from pgstream_dagster.delta import delta_table, jvm, parquet, uri
from pgstream_dagster.delta.delta_table import DeltaTable, TransactionIds
from pgstream_dagster.delta.entries import LOG_FOLDER, checksum_name, entry_name
from pgstream_dagster.errors import CommitFailed, LogDamaged, TableMissing
from pgstream_dagster.schema import layout
from tests.support.plugins.lake import changes


@pytest.fixture
def table(lake: Lake, gateway: JavaGateway):
    opened = DeltaTable(lake.change_log, gateway)
    yield opened
    opened.close()


def log_folder(lake: Lake) -> Path:
    path = uri.local(uri.child(lake.change_log, LOG_FOLDER))
    assert path is not None
    return path


def write(lake: Lake, count: int, end_lsn: int) -> parquet.DataFile:
    file = parquet.write(changes(count, end_lsn=end_lsn), lake.change_log)
    parquet.sync(file)
    return file


def test_tables_are_as_the_layout_says(lake: Lake, spark: SparkSession):
    log = spark.read.format("delta").load(lake.change_log)
    expected = spark.createDataFrame([], layout.CHANGES_DDL).schema
    assert log.schema == expected
    detail = spark.sql(f"describe detail delta.`{lake.change_log}`").first()
    assert detail is not None
    assert tuple(detail.clusteringColumns) == layout.CLUSTER_BY
    assert detail.partitionColumns == []
    assert detail.properties["delta.appendOnly"] == "true"
    assert detail.properties["delta.checkpointInterval"] == "100"
    assert "deletionVectors" not in detail.tableFeatures


def test_making_tables_again_changes_nothing(lake: Lake, gateway: JavaGateway):
    create(lake, gateway)
    assert DeltaTable(lake.change_log, gateway).version == 0


def test_tables_made_by_many_at_once_are_made_once(tmp_path: Path, gateway: JavaGateway):
    fresh = Lake(str(tmp_path / "a lake, with spaces & more"))
    errors: list[BaseException] = []

    def make() -> None:
        try:
            create(fresh, gateway)
        except BaseException as error:  # noqa: BLE001  whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert DeltaTable(fresh.change_log, gateway).version == 0


def test_a_table_that_is_not_there_is_named(tmp_path: Path, gateway: JavaGateway):
    with pytest.raises(TableMissing, match="pgstream setup"):
        DeltaTable(Lake(str(tmp_path)).change_log, gateway)


def test_files_are_named_relative_to_the_table(lake: Lake, table: DeltaTable):
    table.append([write(lake, 3, 100)])
    lines = (log_folder(lake) / entry_name(1)).read_text().splitlines()
    added = [json.loads(line)["add"] for line in lines if "add" in json.loads(line)]
    assert [Path(add["path"]).name for add in added] == [add["path"] for add in added]


def test_a_file_elsewhere_is_refused(lake: Lake, table: DeltaTable, tmp_path: Path):
    file = parquet.write(changes(1, end_lsn=9), uri.absolute(tmp_path))
    with pytest.raises(ValueError, match="is not in the table"):
        table.append([file])


def test_a_commit_on_top_of_anothers_is_made_after_looking_again(
    lake: Lake, gateway: JavaGateway, table: DeltaTable
):
    other = DeltaTable(lake.change_log, gateway)
    other.append([write(lake, 1, 100)], transaction_id=("other", 5))
    seen: list[int | None] = []

    def condition(ids: TransactionIds) -> None:
        seen.append(ids("other"))

    assert table.append([write(lake, 1, 200)], condition=condition) == 2
    assert seen == [5]
    other.close()


def test_a_condition_that_raises_leaves_the_table_as_it_was(lake: Lake, table: DeltaTable):
    def refuse(ids: TransactionIds) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        table.append([write(lake, 1, 100)], condition=refuse)
    table.refresh()
    assert (table.version, table.files()) == (0, [])
    assert table.append([write(lake, 1, 100)]) == 1  # the lock is free again


def test_a_lower_transaction_id_is_an_error_and_not_a_success(lake: Lake, table: DeltaTable):
    table.append([], transaction_id=("a", 10))
    with pytest.raises(CommitFailed, match="ConcurrentTransaction"):
        table.append([write(lake, 1, 100)], transaction_id=("a", 10))
    assert table.version == 1


def test_a_commit_is_rid_of_full_checksums_after_meeting_anothers(
    lake: Lake, gateway: JavaGateway, table: DeltaTable
):
    """On top of a version without a checksum Kernel computes a full one after every commit."""
    other = DeltaTable(lake.change_log, gateway)
    other.append([write(lake, 1, 100)])
    other.close()
    (log_folder(lake) / "00000000000000000001.crc").unlink(missing_ok=True)
    table.append([write(lake, 1, 200)])
    assert table._full_checksums == 1
    table._post_commit.wait()
    table.append([write(lake, 1, 300)])
    assert table._full_checksums == 0
    table.close()
    assert (log_folder(lake) / "00000000000000000003.crc").exists()


def test_fast_commits_are_rid_of_full_checksums_too(
    lake: Lake, gateway: JavaGateway, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delta_table, "FULL_CHECKSUMS", 3)
    other = DeltaTable(lake.change_log, gateway)
    other.append([write(lake, 1, 100)])
    other.close()
    (log_folder(lake) / "00000000000000000001.crc").unlink(missing_ok=True)
    in_a_row: list[int] = []
    for end_lsn in range(200, 210):
        table.append([write(lake, 1, end_lsn)])
        in_a_row.append(table._full_checksums)
    assert max(in_a_row) <= 3
    assert in_a_row[-1] == 0


def test_threads_that_commit_at_once_lose_nothing(lake: Lake, gateway: JavaGateway):
    def work(number: int) -> None:
        own = DeltaTable(lake.change_log, gateway)
        for n in range(5):
            own.append([write(lake, 1, 1000 * (number + 1) + n)])
        own.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = DeltaTable(lake.change_log, gateway)
    assert table.version == 20
    assert table.read(layout.CHANGES).num_rows == 20


@pytest.mark.long
def test_a_checkpoint_is_written_and_the_log_opens_from_it(lake: Lake, gateway: JavaGateway):
    table = DeltaTable(lake.change_log, gateway)
    for end_lsn in range(1, 103):
        table.append([], transaction_id=("shop/1", end_lsn))
    table.close()
    assert table.post_commit_failures == 0
    assert json.loads((log_folder(lake) / "_last_checkpoint").read_bytes())["version"] == 100
    assert DeltaTable(lake.change_log, gateway).transaction_id("shop/1") == 102


def test_a_torn_checkpoint_and_a_torn_entry_are_mended_at_open(lake: Lake, gateway: JavaGateway):
    table = DeltaTable(lake.change_log, gateway)
    for end_lsn in range(1, 102):
        table.append([], transaction_id=("shop/1", end_lsn))
    table.close()
    log = log_folder(lake)
    with (log / "00000000000000000100.checkpoint.parquet").open("r+b") as file:
        file.truncate(3_000)
    (log / entry_name(101)).write_bytes(b"")
    (log / checksum_name(101)).unlink()  # it follows the synced entry
    opened = DeltaTable(lake.change_log, gateway)
    assert (opened.version, opened.transaction_id("shop/1")) == (100, 100)
    assert opened.append([], transaction_id=("shop/1", 101)) == 101
    opened.close()


def test_a_torn_entry_in_the_middle_is_damage(lake: Lake, gateway: JavaGateway):
    table = DeltaTable(lake.change_log, gateway)
    for end_lsn in (1, 2, 3):
        table.append([], transaction_id=("shop/1", end_lsn))
    table.close()
    (log_folder(lake) / entry_name(2)).write_bytes(b"")
    with pytest.raises(LogDamaged):
        DeltaTable(lake.change_log, gateway)


def test_a_failing_checksum_costs_no_commit(
    lake: Lake, gateway: JavaGateway, monkeypatch: pytest.MonkeyPatch
):
    table = DeltaTable(lake.change_log, gateway)

    def fail(version: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(table, "_sync_post_commit", fail)
    table.append([write(lake, 1, 100)])
    table.close()
    assert table.post_commit_failures == 1
    monkeypatch.undo()
    assert table.append([write(lake, 1, 200)]) == 2
    table.close()


def test_a_sleeper_whose_place_was_cleaned_up_does_not_commit_there(
    lake: Lake, gateway: JavaGateway, table: DeltaTable
):
    """Its next version is free again in the folder, years after others wrote it."""
    other = DeltaTable(lake.change_log, gateway)
    for end_lsn in range(1, 103):
        other.append([], transaction_id=("shop/1", end_lsn))
    other.close()
    for version in range(90):
        (log_folder(lake) / entry_name(version)).unlink()
        shutil.rmtree(log_folder(lake) / f"{version:020d}.crc", ignore_errors=True)
    assert table.version == 0
    assert table.append([write(lake, 1, 500)]) == 103


PARENT = """
import sys, time
from pgstream_dagster.delta import jvm
print(jvm.gateway().proc.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_the_jvm_ends_with_its_killed_parent():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        java = psutil.Process(int(parent.stdout.readline()))
        assert java.name() == "java"
        parent.kill()
        parent.wait()
        java.wait(timeout=200)


def test_one_jvm_a_process(gateway: JavaGateway, spark: SparkSession):
    assert jvm.gateway(jvm.JvmSettings(heap="9g")) is gateway
    assert gateway.proc.pid != os.getpid()
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert table_specs.PROPERTIES["delta.enableExpiredLogCleanup"] == "false"


def test_a_java_class_is_looked_up_once(gateway: JavaGateway):
    names = cast("jvm.Java", gateway.jvm)
    assert names.java.util.ArrayList is names.java.util.ArrayList
    assert names.PythonSQLUtils is names.PythonSQLUtils
    missing = names.io.delta.NoSuchClass
    assert names.io.delta.NoSuchClass is not missing  # a jar may bring it
