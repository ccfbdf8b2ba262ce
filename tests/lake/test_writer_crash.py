"""A writer killed at any point leaves all of its commit or nothing, and the next one continues."""

from __future__ import annotations

import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.delta.delta_table import DeltaTable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema import layout
from tests.support.lake.processes import python, read_line
from tests.support.plugins.cluster import ALL
from tests.support.plugins.lake import changes

pytestmark = [pytest.mark.crash, pytest.mark.slow]

LANDING = """
writer = log.writer(1)
writer.commit([changes(3, end_lsn=2000), changes(2, end_lsn=2100)], Lsn(2100))
report("told")
writer.close()
report("closed")
"""

COPYING = """
files = [parquet.write(changes(5, end_lsn=1500), lake.change_log) for _ in range(2)]
log.append_copy(files, epoch=1, relation_id=9, consistent_point=Lsn(1500), table="a.b")
report("told")
"""


def _all(*steps: tuple[str, bool]) -> tuple[tuple[str, bool], ...]:
    """Steps of `make crash`."""
    return steps if ALL else ()


@pytest.fixture
def log(lake: Lake, gateway: JavaGateway):
    opened = ChangeLog(lake, "shop", gateway)
    opened.start(1, Lsn(1000))
    yield opened
    opened.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("failpoint", "is_there"),
    [
        ("land.file:2", False),
        ("land.commit", True),
        ("land.post_commit", True),
        *_all(("land.file:1", False), ("land.sync", False), ("land.committed", True)),
    ],
)
def test_a_landing_is_there_whole_or_not_at_all(
    lake: Lake, gateway: JavaGateway, log: ChangeLog, failpoint: str, is_there: bool
):
    with python(LANDING, lake.root, PGSTREAM_FAILPOINT=failpoint) as killed:
        assert read_line(killed) == ("told" if failpoint == "land.post_commit" else "")
        assert killed.wait(600) == -9
    writer = log.writer(1)
    assert writer.watermark == (Lsn(2100) if is_there else Lsn(1000))
    writer.commit([changes(1, end_lsn=2200)], Lsn(2200))
    writer.close()
    rows = DeltaTable(lake.change_log, gateway).read(layout.CHANGES)
    assert rows.num_rows == (6 if is_there else 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("failpoint", "is_there"), [("copy.files", False), ("copy.committed", True)]
)
def test_a_copy_is_there_whole_or_not_at_all(
    lake: Lake, gateway: JavaGateway, log: ChangeLog, failpoint: str, is_there: bool
):
    """P93: files that were written are no copy before their commit."""
    with python(COPYING, lake.root, PGSTREAM_FAILPOINT=failpoint) as killed:
        assert read_line(killed) == ""
        assert killed.wait(600) == -9
    assert log.newest_copy(1, 9) == (Lsn(1500) if is_there else None)
    rows = DeltaTable(lake.change_log, gateway).read(layout.CHANGES)
    assert rows.num_rows == (10 if is_there else 0)
