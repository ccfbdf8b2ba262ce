"""
The JVM and lakes for tests: `gateway` and `spark` (one JVM a session), `lake` (fresh, with tables).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaGateway
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.table_specs import create
from pgstream_dagster.delta import jvm
from pgstream_dagster.schema import layout

SETTINGS = jvm.JvmSettings(heap="1g", master="local[2]")


@pytest.fixture(scope="session")
def gateway() -> JavaGateway:
    """The JVM of the test session."""
    return jvm.gateway(SETTINGS)


@pytest.fixture(scope="session")
def spark(gateway: JavaGateway) -> Iterator[SparkSession]:
    """A SparkSession on the same JVM."""
    session = jvm.spark(SETTINGS)
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path, gateway: JavaGateway) -> Lake:
    """A lake of this test alone, with its tables."""
    fresh = Lake(str(tmp_path / "lake"))
    create(fresh, gateway)
    return fresh


def changes(count: int, *, end_lsn: int, relation: str = "orders", **columns: Any) -> pa.Table:
    """`count` inserts of one transaction that ends at `end_lsn`."""
    rows = {
        "epoch": [1] * count,
        "commit_lsn": [end_lsn - 8] * count,
        "ordinal": list(range(count)),
        "end_lsn": [end_lsn] * count,
        "xid": [end_lsn % 1000] * count,
        "committed_at": [1_700_000_000_000_000 + end_lsn] * count,
        "op": ["insert"] * count,
        "namespace": ["public"] * count,
        "relation": [relation] * count,
        "relation_id": [16_384] * count,
        "schema_id": [7] * count,
        "key": [[str(n)] for n in range(count)],
        "after": [[("id", str(n)), ("note", None), ("text", f"row {n}")] for n in range(count)],
        **columns,
    }
    return pa.table(
        [
            pa.array(rows.get(name, [None] * count), layout.CHANGES.field(name).type)
            for name in layout.CHANGES.names
        ],
        schema=layout.CHANGES,
    )


def plant(lake: Lake, relation: str, *rows: dict[str, Any]) -> None:
    """Put rows into the log right behind the relation's copy, as if they had been landed."""
    log = jvm.spark(SETTINGS).read.format("delta").load(lake.change_log)
    [copied] = log.where(f"op = 'read' and relation = '{relation}'").limit(1).collect()
    like = copied.asDict() | {"after": None, "ordinal": 0, "landed_at": None, "committed_at": None}
    planted = [like | {"ordinal": number} | row for number, row in enumerate(rows)]
    frame = jvm.spark(SETTINGS).createDataFrame(
        [tuple(row[name] for name in layout.CHANGES.names) for row in planted], layout.CHANGES_DDL
    )
    frame.write.format("delta").mode("append").save(lake.change_log)
