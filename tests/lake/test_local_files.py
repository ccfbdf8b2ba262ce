"""Files that Java makes: their modes, and that no program is started for one."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import pgstream_dagster.delta
from pgstream_dagster.delta.jvm import Java
from pgstream_dagster.delta.kernel import kernel

SOURCE = "LocalFiles.java"


def faults_of_programs(gateway: JavaGateway) -> int:
    """Page faults of all programs that this JVM has started and waited for (proc(5), cminflt)."""
    status = Path(f"/proc/{gateway.proc.pid}/stat").read_text()
    return int(status.rpartition(")")[2].split()[8])


def starts_programs(gateway: JavaGateway, work: Callable[[], object]) -> bool:
    """Whether `work` does so each time; Spark starts one by itself, once."""
    faults = [faults_of_programs(gateway)]
    for _ in range(3):
        work()
        faults.append(faults_of_programs(gateway))
    return all(after > before for before, after in itertools.pairwise(faults))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def files(gateway: JavaGateway) -> Java:
    local = gateway.jvm.java.net.URI("file:///")
    return gateway.jvm.org.apache.hadoop.fs.FileSystem.get(local, kernel(gateway).hadoop)


def java_path(gateway: JavaGateway, path: Path) -> Java:
    return gateway.jvm.org.apache.hadoop.fs.Path(f"file:{path}")


def permission(gateway: JavaGateway, octal: str) -> Java:
    return gateway.jvm.org.apache.hadoop.fs.permission.FsPermission(octal)


def test_a_file_has_the_mode_of_hadoops_configuration(
    gateway: JavaGateway, files: Java, tmp_path: Path
):
    made = java_path(gateway, tmp_path / "made")
    assert not starts_programs(gateway, lambda: files.create(made).close())
    assert mode(tmp_path / "made") == 0o644
    assert not starts_programs(
        gateway, lambda: files.setPermission(made, permission(gateway, "600"))
    )
    assert mode(tmp_path / "made") == 0o600


def test_a_folder_can_have_the_sticky_bit(gateway: JavaGateway, files: Java, tmp_path: Path):
    files.setPermission(java_path(gateway, tmp_path), permission(gateway, "1777"))
    assert mode(tmp_path) == 0o1777


def test_a_folder_keeps_its_set_group_id_and_a_file_does_not(
    gateway: JavaGateway, files: Java, tmp_path: Path
):
    shared, file = tmp_path / "shared", tmp_path / "file"
    shared.mkdir()
    file.touch()
    for path in (shared, file):
        path.chmod(0o2775)
        files.setPermission(java_path(gateway, path), permission(gateway, "755"))
    assert mode(shared) == 0o2755
    assert mode(file) == 0o755
    files.mkdirs(java_path(gateway, shared / "made"))
    assert mode(shared / "made") == 0o2755


def test_a_missing_file_is_named(files: Java, gateway: JavaGateway, tmp_path: Path):
    absent = java_path(gateway, tmp_path / "absent")
    with pytest.raises(Py4JJavaError, match=r"NoSuchFileException.*absent"):
        files.setPermission(absent, permission(gateway, "600"))
    with pytest.raises(Py4JJavaError, match=r"FileNotFoundException.*absent"):
        files.getFileLinkStatus(absent)


def test_a_commit_of_spark_starts_no_program(
    spark: SparkSession, gateway: JavaGateway, tmp_path: Path
):
    rows = spark.range(3).write.format("delta").mode("append")
    assert not starts_programs(gateway, lambda: rows.save(f"file:{tmp_path}/table"))
    entries = list((tmp_path / "table" / "_delta_log").glob("*.json"))
    assert [mode(entry) for entry in entries] == [0o644] * 3


def test_the_jar_is_of_the_source_beside_it():
    folder = Path(pgstream_dagster.delta.__file__).parent
    with ZipFile(folder / "local_files.jar") as jar:
        assert jar.read(SOURCE) == (folder / SOURCE).read_bytes()
