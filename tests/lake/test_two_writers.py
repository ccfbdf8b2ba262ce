"""Two processes on one log: one writes, the other is refused, and no row is lost or doubled."""

from __future__ import annotations

import json
import signal

import psutil
import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.delta.delta_table import DeltaTable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema import layout
from tests.support.lake.processes import python, read_line, send_line
from tests.support.plugins.lake import changes
from tests.support.plugins.signals import signal_with_jvm
from tests.support.plugins.wait import until

pytestmark = pytest.mark.slow


@pytest.fixture
def log(lake: Lake, gateway: JavaGateway):
    opened = ChangeLog(lake, "shop", gateway)
    opened.start(1, Lsn(1000))
    yield opened
    opened.close()


def rows_of(lake: Lake, gateway: JavaGateway) -> list[tuple[int, int]]:
    table = DeltaTable(lake.change_log, gateway).read(layout.CHANGES)
    return sorted(zip(*table.select(["end_lsn", "ordinal"]).to_pydict().values(), strict=True))


SLEEPER = """
stop_at = sys.argv[2]

def reach(name):
    if name == stop_at:
        os.kill(os.getpid(), signal.SIGSTOP)

log_module.reach = reach
writer = log.writer(1)
report("open")
sys.stdin.readline()
try:
    writer.commit([changes(7, end_lsn=2500)], Lsn(2500))
    report("committed")
except PgstreamError as error:
    report(type(error).__name__, error)
"""


@pytest.mark.parametrize("stop_at", ["nowhere", pytest.param("land.sync", marks=pytest.mark.long)])
def test_a_writer_that_slept_through_its_replacement_writes_nothing(
    lake: Lake, gateway: JavaGateway, log: ChangeLog, stop_at: str
):
    """Stopped before its commit, or in it with its file already written."""
    with python(SLEEPER, lake.root, stop_at) as sleeper:
        assert read_line(sleeper) == "open"
        if stop_at == "nowhere":
            signal_with_jvm(sleeper, signal.SIGSTOP)
        else:
            send_line(sleeper, "go")
            until(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED)

        successor = log.writer(1)
        successor.commit([changes(3, end_lsn=2000), changes(4, end_lsn=2400)], Lsn(2400))
        if stop_at == "nowhere":
            send_line(sleeper, "go")
        signal_with_jvm(sleeper, signal.SIGCONT)
        assert read_line(sleeper).startswith("WriterReplaced")

    successor.commit([changes(2, end_lsn=2600)], Lsn(2600))
    successor.close()
    assert log.watermark(1) == Lsn(2600)
    assert [end for end, _ in rows_of(lake, gateway)] == [2000] * 3 + [2400] * 4 + [2600] * 2


RACER = """
name, rounds = int(sys.argv[2]), int(sys.argv[3])
report("open")
sys.stdin.readline()
mine = []
while len(mine) < rounds:
    writer = log.writer(1)
    end = Lsn((writer.watermark // 10 + 1) * 10 + name)
    file_time = (time.time() // 0.05 + 1) * 0.05
    time.sleep(file_time - time.time())  # both try at the same moment
    try:
        mine.append([writer.commit([changes(2, end_lsn=end)], end).version, int(end)])
    except WriterReplaced:
        pass
    writer.close()
report(json.dumps(mine))
"""


@pytest.mark.long
def test_of_two_writers_that_race_every_commit_reported_is_in_the_log_once(
    lake: Lake, gateway: JavaGateway, log: ChangeLog
):
    rounds = "25"
    with (
        python(RACER, lake.root, "1", rounds) as first,
        python(RACER, lake.root, "2", rounds) as second,
    ):
        for racer in (first, second):
            assert read_line(racer) == "open"
        for racer in (first, second):
            send_line(racer, "go")
        commits = [
            tuple(pair) for racer in (first, second) for pair in json.loads(read_line(racer))
        ]
    versions = [version for version, _ in commits]
    assert len(set(versions)) == len(versions) == 50
    ends = sorted(end for _, end in commits)
    assert rows_of(lake, gateway) == sorted((end, ordinal) for end in ends for ordinal in (0, 1))
    assert log.watermark(1) == Lsn(ends[-1])
