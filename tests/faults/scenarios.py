"""
What can happen to a running stream, what users may expect then, and the proof of it.

Each scenario is a function that applies one fault under load and checks what is particular to it.
When it returns, the player waits until all is landed and compares the log with the source and with
the second slot; a scenario that ended the stream says in its outcome how it continues.
"""

from __future__ import annotations

import logging
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from tests.faults.site import (
    STILL_SECONDS,
    WAL_SENDER_TIMEOUT,
    Site,
    clock_shift,
    fill,
    mount,
)
from tests.support.harness import runner
from tests.support.harness.tcp_proxy import Throttle, http
from tests.support.plugins.wait import until

logger = logging.getLogger(__name__)

TERMINATED: Final = 50
"""Walsenders, at random."""

END_WALSENDER: Final = (
    "select pg_terminate_backend(active_pid) from pg_replication_slots"
    " where active and slot_name like 'pgstream%'"
)


class Needs(Enum):
    """What a scenario runs on."""

    SHARED = "one site that continues from scenario to scenario"
    OWN = "a site of its own"
    DISKS = "a site of its own with lake and state on small file systems"
    SEARCH = "the shared site with an index, its indexer and a network before the cluster"


@dataclass(frozen=True, slots=True)
class Scenario:
    """`done` and `expected` are one sentence each, for the page and for readers of a failure."""

    group: str
    done: str
    expected: str
    play: Callable[[Site], None]
    needs: Needs = Needs.SHARED
    keeps_slot: bool = True
    """False: the source was replaced, so only the rows can be compared."""

    @property
    def name(self) -> str:
        return self.play.__name__


# --- the network before Postgres --------------------------------------------------------------


def connection_cut(site: Site) -> None:
    with site.under_load():
        for _ in range(3):
            site.network.cut()
            site.wait_until_landed()


def connection_reset(site: Site) -> None:
    with site.under_load():
        for _ in range(3):
            site.network.reset()
            site.wait_until_landed()


def packets_dropped(site: Site) -> None:
    with site.under_load():
        site.network.drop()
        began = time.monotonic()
        try:  # the stream's own words: sessions of the catalog connect, too
            until(
                lambda: "it was silent for" in site.output(),
                seconds=3 * WAL_SENDER_TIMEOUT,
                every=0.1,
            )
        finally:
            site.network.restore()
        logger.info("noticed after %.1f s", time.monotonic() - began)
        site.wait_until_landed()


def source_unreachable(site: Site) -> None:
    with site.under_load():
        site.network.refuse()
        before = site.network.accepted
        until(lambda: site.network.accepted >= before + 3, seconds=STILL_SECONDS, every=0.1)
        site.network.restore()


def slow_network(site: Site) -> None:
    with site.under_load():
        site.network.throttle = Throttle(latency_seconds=0.2)
        site.network.cut()  # the connection is made slowly, too
        site.wait_until_landed()
        site.network.restore()


def narrow_network(site: Site) -> None:
    with site.under_load():
        site.network.throttle = Throttle(bytes_per_second=100_000, chunk_bytes=1 << 12)
        site.load.wait_for(site.load.counts["committed"] + 20, timeout_seconds=STILL_SECONDS)
        site.wait_until_landed()
        site.network.restore()


def byte_by_byte(site: Site) -> None:
    with site.under_load():
        site.network.throttle = Throttle(chunk_bytes=1)
        site.load.wait_for(site.load.counts["committed"] + 10, timeout_seconds=STILL_SECONDS)
        site.wait_until_landed()
        site.network.restore()


# --- the server -------------------------------------------------------------------------------


def walsender_terminated_with_full_queues(site: Site) -> None:
    by, jvm = random.Random(site.seed), site.jvm()
    with site.under_load():
        for number in range(TERMINATED):
            if number % 10 == 0:  # nothing lands meanwhile, so every queue fills
                jvm.send_signal(signal.SIGSTOP)
                site.execute(*_commits(7), END_WALSENDER)
                time.sleep(3.5)
                jvm.send_signal(signal.SIGCONT)
                site.wait_until_landed()
            time.sleep(by.uniform(0, 0.3))
            site.execute(END_WALSENDER)


def _commits(count: int) -> list[str]:
    return [
        statement
        for _ in range(count)
        for statement in (
            "update accounts set note = note where id % 7 = 1",
            "select pg_sleep(0.15)",
        )
    ]


def server_restarted(site: Site) -> None:
    with site.under_load():
        site.server.restart("fast")


def server_killed(site: Site) -> None:
    with site.under_load():
        site.server.kill()
        site.server.start()


def catalog_queries_cancelled(site: Site) -> None:
    cancel = (
        "select pg_cancel_backend(pid) from pg_stat_activity where datname = 'site'"
        " and backend_type = 'client backend' and pid <> pg_backend_pid()"
        " and application_name like 'pgstream%'"
    )
    with site.under_load():
        for _ in range(100):
            site.execute(cancel)
            time.sleep(0.02)


def promoted_after_the_watermark(site: Site) -> None:
    with site.under_load():
        pass
    site.wait_until_landed()
    site.server.stop()
    _promote(site)
    for _ in range(3):  # the first connection, and those after the watermark has passed the fork
        site.execute(*_commits(2))
        site.wait_until_landed()
        site.network.cut()


def _promote(site: Site) -> None:
    """Let the server end a recovery: it continues with a new timeline."""
    Path(data_folder(site), "standby.signal").touch()
    site.server.start()
    site.execute("select pg_promote()", dsn=site.server.dsn)
    site.execute("checkpoint", dsn=site.server.dsn)


def promoted_before_the_watermark(site: Site) -> None:
    saved = _saved(site)
    _write_and_land(site)
    _put_back(site, saved, start=False)
    _promote(site)
    site.execute(*_commits(3))
    site.wait_until_ended("resnapshot")
    _refused_again(site)
    _resnapshot(site, 2)


def server_restored_from_a_copy(site: Site) -> None:
    saved = _saved(site)
    _write_and_land(site)
    _put_back(site, saved)
    site.execute(*_commits(3))
    site.wait_until_ended("resnapshot")
    _refused_again(site)
    _resnapshot(site, 2)


def server_restored_and_past_the_watermark_again(site: Site) -> None:
    saved = _saved(site)
    _write_and_land(site)
    landed = site.watermark
    site.stop_stream()
    _put_back(site, saved)
    while runner.flushed(site.dsn) < landed + (1 << 20):
        site.execute(
            "insert into accounts select 3000000 + g, 'after', g, 'the restore'"
            " from generate_series(1, 2000) g on conflict (id) do update set balance = 1"
        )
    site.stream = site.pgstream("stream")
    site.wait_until_ended("resnapshot")
    _refused_again(site)
    _resnapshot(site, 2)


def data_folder(site: Site) -> Path:
    return Path(site.server.folder, "data").resolve()


def _saved(site: Site) -> Path:
    """A copy of the data folder, while the server is stopped and the stream waits."""
    site.wait_until_landed()
    site.server.stop()
    saved = data_folder(site).with_name("saved")
    subprocess.run(["cp", "-a", str(data_folder(site)), str(saved)], check=True)
    site.server.start()
    return saved


def _write_and_land(site: Site) -> None:
    with site.under_load(site.load.counts["committed"] + 40):
        pass
    site.wait_until_landed()


def _put_back(site: Site, saved: Path, *, start: bool = True) -> None:
    site.server.stop("immediate")
    shutil.rmtree(data_folder(site))
    saved.rename(data_folder(site))
    if start:
        site.server.start()


def _refused_again(site: Site) -> None:
    """A supervisor that starts the stream again, after more WAL was written, changes nothing."""
    site.execute(
        "insert into accounts select 4000000 + g, 'more', g, repeat('x', 500)"
        " from generate_series(1, 5000) g"
    )
    site.stream = site.pgstream("stream")
    site.wait_until_ended("resnapshot")


def _resnapshot(site: Site, epoch: int) -> None:
    site.run("resnapshot")
    site.epoch = epoch
    site.start_stream()


# --- processes --------------------------------------------------------------------------------


def stream_killed(site: Site) -> None:
    with site.under_load():
        for _ in range(2):
            assert site.stream is not None
            site.stream.kill()
            site.stream.wait()
            site.start_stream()


def jvm_killed(site: Site) -> None:
    with site.under_load():
        site.jvm().kill()
        site.wait_until_ended()
    site.start_stream()


def stopped_while_a_table_is_locked(site: Site) -> None:
    import psycopg

    with psycopg.connect(site.dsn) as locker:
        # A rewrite: the recopier wants a copy, and has to wait for the table.
        site.execute("alter table audit alter column who type varchar(90)", "vacuum full audit")
        locker.execute("lock table audit in access exclusive mode")
        time.sleep(4)  # two polls of the catalog
        assert site.stream is not None
        site.stream.send_signal(signal.SIGTERM)
        began = time.monotonic()
        until(lambda: site.stream is None or site.stream.poll() is not None, seconds=STILL_SECONDS)
        seconds = time.monotonic() - began
        assert site.stream.returncode == 0, site.output()
        assert seconds < 10 or "waiting" in site.output(), (
            f"silent for {seconds:.0f} s: {site.output()}"
        )
        locker.rollback()
    site.start_stream()


def two_streams(site: Site) -> None:
    with site.under_load():
        second = site.pgstream("stream")
        until(lambda: second.poll() is not None, seconds=STILL_SECONDS, progress=site.progress)
        assert (second.returncode, "is in use" in site.output()) == (4, True), site.output()
        site.wait_until_landed()


def two_pipelines_in_one_state_folder(site: Site) -> None:
    with site.under_load():
        other = site.pgstream("setup", PGSTREAM_LAKE=str(site.folder / "other-lake"))
        until(lambda: other.poll() is not None, seconds=STILL_SECONDS)
        assert other.returncode in (2, 3), site.output("setup")
        assert "an error of pgstream itself" not in site.output("setup"), site.output("setup")
        site.wait_until_landed()


def clock_jumps(site: Site) -> None:
    clock = site.folder / "clock"
    clock.write_text("0")
    site.stop_stream()
    site.start_stream(CLOCK_SHIFT=str(clock), PYTHONPATH=clock_shift(site.folder))
    for seconds in (-7_200, 3 * 86_400, 0):
        with site.under_load(site.load.counts["committed"] + 20):
            clock.write_text(str(seconds))
            site.wait_until_landed()
    site.stop_stream()
    site.start_stream()


# --- disks ------------------------------------------------------------------------------------


def state_folder_removed(site: Site) -> None:
    with site.under_load():
        for _ in range(3):
            shutil.rmtree(site.state, ignore_errors=True)
            site.wait_until_landed()


def lake_disk_full(site: Site) -> None:
    with site.under_load(site.load.counts["committed"] + 60):
        filled = fill(site.lake)
        site.wait_until_waiting("is full")
        filled.unlink()
        site.wait_until_landed()


def lake_read_only(site: Site) -> None:
    with site.under_load(site.load.counts["committed"] + 60):
        _remount(site.lake, "ro")
        site.wait_until_waiting("Read-only")
        _remount(site.lake, "rw")
        site.wait_until_landed()


def _remount(folder: Path, mode: str) -> None:
    """Busy while a file is being written."""

    def is_done() -> bool:
        with suppress(PermissionError):
            mount("-o", f"remount,{mode}", str(folder))
            return True
        return False

    until(is_done)


def lake_moved_away(site: Site) -> None:
    lake, elsewhere = site.lake / "change_log", site.lake / "elsewhere"
    with site.under_load(site.load.counts["committed"] + 60):
        lake.rename(elsewhere)
        site.wait_until_waiting("not at", "do not run 'pgstream setup'")
        elsewhere.rename(lake)
        site.wait_until_landed()


def state_disk_full(site: Site) -> None:
    with site.under_load(site.load.counts["committed"] + 60):
        filled = fill(site.state)
        site.wait_until_waiting("cannot keep a large transaction")
        filled.unlink()
        site.wait_until_landed()


# --- the search cluster -------------------------------------------------------------------------

WRONG_ANSWERS: Final = {
    "200 with HTML": http("200 OK", b"<html>please log in</html>"),
    "408": http("408 Request Timeout"),
    "520": http("520 Unknown Error", b"<html>origin error</html>"),
    "an empty answer": http("200 OK"),
    "a truncated answer": http("200 OK", b'{"took"', kind="application/json", promised=90),
}


def search_answers_wrongly(site: Site) -> None:
    network = site.search_network
    assert network is not None
    for answer in WRONG_ANSWERS.values():
        with site.under_load(site.load.counts["committed"] + 10):
            before = network.accepted
            network.answer(answer)
            until(lambda: network.accepted >= before + 2, seconds=STILL_SECONDS, every=0.1)  # noqa: B023
            network.restore()


def search_connection_breaks(site: Site) -> None:
    network = site.search_network
    assert network is not None
    for breaks in (network.cut, network.reset):
        with site.under_load(site.load.counts["committed"] + 10):
            breaks()
    with site.under_load(site.load.counts["committed"] + 10), suppress(AssertionError):
        network.throttle = Throttle(latency_seconds=0.2)
        time.sleep(2)
    network.restore()


NETWORK: Final = "The network between pgstream and Postgres"
SERVER: Final = "The Postgres server"
PROCESSES: Final = "Processes"
DISKS: Final = "Disks"
SEARCH: Final = "The search cluster"

GOES_ON: Final = "The stream reconnects and continues by itself; the application notices nothing."

SCENARIOS: Final = (
    Scenario(NETWORK, "The connection is closed, again and again", GOES_ON, connection_cut),
    Scenario(NETWORK, "The connection is reset, again and again", GOES_ON, connection_reset),
    Scenario(
        NETWORK,
        "Packets are lost in silence, with no sign that the connection is gone",
        "The stream notices within three times `wal_sender_timeout`, by its own clock, and connects"
        " again.",
        packets_dropped,
    ),
    Scenario(
        NETWORK,
        "The server cannot be reached for a while",
        "The stream tries again with growing waits and continues by itself.",
        source_unreachable,
    ),
    Scenario(NETWORK, "Every packet takes 200 ms", "The stream continues.", slow_network),
    Scenario(NETWORK, "The line carries 100 kB/s", "The stream continues, later.", narrow_network),
    Scenario(NETWORK, "Bytes arrive one at a time", "The stream continues.", byte_by_byte),
    Scenario(
        SERVER,
        f"The walsender is terminated {TERMINATED} times, also while every queue of the stream is"
        " full",
        GOES_ON,
        walsender_terminated_with_full_queues,
    ),
    Scenario(
        SERVER,
        "The server is restarted",
        "It stops without delay, since all it sent is confirmed, and the stream reconnects.",
        server_restarted,
    ),
    Scenario(SERVER, "The server crashes and recovers", GOES_ON, server_killed),
    Scenario(
        SERVER,
        "Someone cancels the stream's queries of the catalog",
        "They are asked again; the stream continues by itself.",
        catalog_queries_cancelled,
    ),
    Scenario(
        SERVER,
        "A standby that has everything up to the watermark is promoted",
        "The stream continues over the new timeline, over every reconnect, too.",
        promoted_after_the_watermark,
        Needs.OWN,
        keeps_slot=False,
    ),
    Scenario(
        SERVER,
        "A standby that lacks changes the log has is promoted",
        "The stream ends with `TimelineForked`, at every start; `pgstream resnapshot` continues in"
        " a new epoch.",
        promoted_before_the_watermark,
        Needs.OWN,
        keeps_slot=False,
    ),
    Scenario(
        SERVER,
        "The server is put back to an earlier copy of its data folder",
        "The stream ends with a named error, at every start, however much is written meanwhile;"
        " `pgstream resnapshot` continues in a new epoch.",
        server_restored_from_a_copy,
        Needs.OWN,
        keeps_slot=False,
    ),
    Scenario(
        SERVER,
        "The server is put back to an earlier copy while the stream is down, and its WAL is past"
        " the watermark again",
        "The stream ends with a named error, at every start; `pgstream resnapshot` continues in a"
        " new epoch.",
        server_restored_and_past_the_watermark_again,
        Needs.OWN,
        keeps_slot=False,
    ),
    Scenario(
        PROCESSES,
        "The stream is killed",
        "Started again it continues; nothing is lost or doubled.",
        stream_killed,
    ),
    Scenario(
        PROCESSES,
        "The stream's JVM is killed",
        "The stream ends with a named error and continues when it is started again.",
        jvm_killed,
    ),
    Scenario(
        PROCESSES,
        "The stream is stopped while a table that needs a copy is locked",
        "It has ended after ten seconds, or says what it waits for; the copy is made after the next"
        " start.",
        stopped_while_a_table_is_locked,
    ),
    Scenario(
        PROCESSES,
        "A second stream of the same pipeline is started",
        "The second is refused; the first continues.",
        two_streams,
    ),
    Scenario(
        PROCESSES,
        "Another pipeline of the same name uses the same state folder",
        "It is refused by name; the first continues.",
        two_pipelines_in_one_state_folder,
    ),
    Scenario(
        PROCESSES,
        "The clock of the machine is set back two hours, and forward three days",
        "Nothing: order is the position in the WAL, and waits use a clock that is never set.",
        clock_jumps,
        Needs.OWN,
    ),
    Scenario(
        DISKS,
        "The state folder is removed",
        "Capture continues: nothing in it is needed to stream.",
        state_folder_removed,
    ),
    Scenario(
        DISKS,
        "The disk of the lake is full",
        "The stream reports it, waits, and continues by itself when there is room.",
        lake_disk_full,
        Needs.DISKS,
    ),
    Scenario(
        DISKS,
        "The disk of the lake is read-only",
        "The stream reports it, waits, and continues by itself when it can write.",
        lake_read_only,
        Needs.DISKS,
    ),
    Scenario(
        DISKS,
        "The lake is not there: unmounted, or moved",
        "The stream reports it, waits, and continues by itself when it is back.",
        lake_moved_away,
        Needs.OWN,
    ),
    Scenario(
        DISKS,
        "The disk of the state folder is full",
        "Capture continues up to a transaction that does not fit in memory. There the stream"
        " reports it, waits, and continues by itself when there is room.",
        state_disk_full,
        Needs.DISKS,
    ),
    Scenario(
        SEARCH,
        f"A proxy before the cluster answers in its place: {', '.join(WRONG_ANSWERS)}",
        "The indexer waits and continues by itself; the stream is not affected.",
        search_answers_wrongly,
        Needs.SEARCH,
    ),
    Scenario(
        SEARCH,
        "Connections to the cluster are closed, reset, or slow",
        "The indexer continues by itself; the stream is not affected.",
        search_connection_breaks,
        Needs.SEARCH,
    ),
)
