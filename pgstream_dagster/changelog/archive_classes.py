"""
`python -m pgstream_dagster.changelog.archive_classes`: make the class archive of this installation.

Half a minute, 200 MB in the cache. Does what most processes do once (a landing through Kernel, a
fold and a task of Python through Spark) in a JVM that writes down at its end what it has loaded.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pgstream_dagster.changelog import jvm, replay
from pgstream_dagster.changelog.fold import fold
from pgstream_dagster.changelog.lake import Lake, create
from pgstream_dagster.changelog.layout import CHANGES
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.runtime import class_archive
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema

RELATION = 16_384
ROWS = 100
TABLE = TableSchema(
    1,
    RELATION,
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", 1, 20, "bigint"), Column("v", 2, 25, "text")),
    ("id",),
)


def main() -> None:
    """Make it unless it is there."""
    archive = jvm.class_archive_place()
    if archive.is_file():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_suffix(f".{os.getpid()}")
    settings = jvm.JvmSettings(java_options=class_archive.making(fresh))
    with tempfile.TemporaryDirectory(prefix="pgstream-classes-") as folder:
        _live(Lake(folder), settings)
    code = jvm.end()
    if code != 0 or not fresh.is_file():
        fresh.unlink(missing_ok=True)
        sys.exit(f"no class archive was made (Java ended with {code}): JVMs start slower")
    fresh.replace(archive)


def _live(lake: Lake, settings: jvm.JvmSettings) -> None:
    gateway = jvm.gateway(settings)
    create(lake, gateway)
    schemas, log = SchemaLog(lake, gateway), ChangeLog(lake, "classes", gateway)
    schemas.append([(TABLE, Lsn(1))])
    log.start(1, Lsn(1))
    writer = log.writer(1)
    for end_lsn in (100, 200, 300):
        writer.commit([_changes(end_lsn)], Lsn(end_lsn))
    writer.close()
    changes = replay.relation_changes(jvm.spark(settings), lake, 1, RELATION, before=Lsn(300))
    rows = fold(changes, [TABLE]).selectExpr("commit_lsn", "to_json(struct(row)) AS body")
    rows.mapInArrow(_same, "commit_lsn BIGINT, body STRING").orderBy("body").toArrow()
    log.close()
    schemas.close()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _changes(end_lsn: int) -> pa.Table:
    rows = [
        {
            "epoch": 1,
            "commit_lsn": end_lsn - 8,
            "ordinal": number,
            "end_lsn": end_lsn,
            "xid": end_lsn,
            "committed_at": 0,
            "op": "insert",
            "namespace": TABLE.namespace,
            "relation": TABLE.name,
            "relation_id": RELATION,
            "schema_id": TABLE.schema_id,
            "key": [str(number)],
            "after": [("id", str(number)), ("v", str(end_lsn))],
        }
        for number in range(ROWS)
    ]
    return pa.Table.from_pylist(rows, CHANGES)


if __name__ == "__main__":
    main()
