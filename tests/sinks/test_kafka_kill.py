"""A process that writes to Kafka is killed again and again: a consumer sees each change once."""

from __future__ import annotations

import random
import signal
import subprocess
from pathlib import Path

import pytest

from pgstream_dagster.config.kafka import KafkaConfig
from tests.support.harness.background import END_SECONDS, start
from tests.support.harness.kafka_process import PROCESS, expected
from tests.support.plugins.cluster import ALL
from tests.support.plugins.kafka import Broker, read
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600)]

KILLS = 200 if ALL else 6
MOST = 8
"""Transactions between two kills."""

FAILPOINTS = ("kafka.sent", "kafka.committed")


@pytest.mark.long
def test_a_consumer_sees_each_change_once_after_many_kills(
    kafka: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    config = KafkaConfig(
        bootstrap_servers=kafka.servers,
        topic=f"{topic_prefix}{{relation}}",
        create={"partitions": 3},  # type: ignore[arg-type]
        exactly_once=True,
        progress_topic=f"{topic_prefix}progress",
    ).model_dump_json()
    chance, log = random.Random(11), tmp_path / "sink.log"
    for number in range(KILLS):
        if number % 2:
            kill_at_any_moment(config, chance.randint(1, MOST), log)
        else:
            kill_at(f"{FAILPOINTS[number // 2 % 2]}:{chance.randint(1, MOST)}", config, log)
    count = begun(log) + MOST
    assert start(PROCESS, config, str(count), log=log).wait(END_SECONDS) == 0, log.read_text()
    records = read(kafka.servers, f"{topic_prefix}counters")
    ids = [record.headers["pgstream.event_id"].decode() for record in records]
    assert sorted(ids) == sorted(expected(count))
    of_keys: dict[bytes | None, list[bytes]] = {}
    for record in records:
        of_keys.setdefault(record.key, []).append(record.headers["pgstream.position"])
    assert all(positions == sorted(positions) for positions in of_keys.values())
    everything = read(kafka.servers, f"{topic_prefix}counters", "read_uncommitted")
    assert len(everything) > len(records), "no kill left a transaction open"


def kill_at(failpoint: str, config: str, log: Path) -> None:
    killed = start(PROCESS, config, str(begun(log) + 3 * MOST), log=log, failpoint=failpoint)
    assert killed.wait(END_SECONDS) == -signal.SIGKILL, log.read_text()


def kill_at_any_moment(config: str, transactions: int, log: Path) -> None:
    """Kill it in or after the last of so many further transactions."""
    before = begun(log)
    process = start(PROCESS, config, str(before + 1_000), log=log)
    try:
        until(lambda: is_past(before + transactions, log, process), seconds=END_SECONDS)
    finally:
        process.kill()
        process.wait()


def is_past(transaction: int, log: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, log.read_text()
    return begun(log) >= transaction


def begun(log: Path) -> int:
    """The last transaction that a process has begun; -1 before the first."""
    lines = log.read_text().splitlines() if log.is_file() else []
    return max((int(line) for line in lines if line.isdigit()), default=-1)
