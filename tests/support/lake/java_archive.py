"""
`python -m tests.support.lake.java_archive FILE`: write an archive of the classes our JVMs load.

A JVM that is started with it needs about a third less CPU until its first Spark job has run, and
the tests start hundreds. It fits one Java and one set of jars; with others, Java ignores it.

Source:
    https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pgstream_dagster.changelog import replay
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.lake import Lake, create
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.delta import jvm
from pgstream_dagster.lsn import Lsn
from tests.support.plugins.lake import SETTINGS, changes
from tests.support.reference.history import schema, text

VERSION = schema(text("id", 1), text("note", 2), text("text", 3))


def load_classes(folder: Path) -> None:
    """Land, fold and rewrite a small log, as the tests do."""
    lake, gateway = Lake(str(folder / "lake")), jvm.gateway(SETTINGS)
    create(lake, gateway)
    log = ChangeLog(lake, "shop", gateway)
    log.start(1, Lsn(100))
    writer = log.writer(1)
    for end_lsn in (208, 308, 408):
        ids = [VERSION.schema_id] * 10
        writer.commit([changes(10, end_lsn=end_lsn, schema_id=ids)], Lsn(end_lsn))
    writer.close()
    log.close()
    spark = jvm.spark(SETTINGS)
    rows = replay.relation_changes(spark, lake, 1, 16_384, before=Lsn(408))
    assert fold(rows, [VERSION]).toArrow().num_rows == 10
    spark.read.format("delta").load(lake.change_log).sort("commit_lsn").write.format("delta").save(
        str(folder / "copy")
    )


def main() -> None:
    """Load classes in a JVM that writes the archive when it ends."""
    file = Path(sys.argv[1]).absolute()
    options = os.environ.get("JDK_JAVA_OPTIONS", "")
    os.environ["JDK_JAVA_OPTIONS"] = f"{options} -XX:ArchiveClassesAtExit={file} -Xlog:cds=off"
    with tempfile.TemporaryDirectory() as folder:
        load_classes(Path(folder))
        process = jvm.gateway().proc
        process.stdin.close()  # ends the JVM
        process.wait()


if __name__ == "__main__":
    main()
