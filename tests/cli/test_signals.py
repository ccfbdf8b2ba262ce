"""Ctrl-C and SIGTERM: what is complete is landed and confirmed; the exit code says how it was."""

from __future__ import annotations

import signal

import pytest

from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.one_major("newest")

SECONDS = 120  # a JVM starts in 3 s, and in a minute on a busy machine


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM]
)
def test_stopped_stream_has_landed_and_confirmed_what_was_complete(shell, spark, number):
    shell.pgstream("setup")
    stream = shell.start("stream")
    psql(shell.dsn, "insert into orders values (101, 'before the signal')")
    until(lambda: shell.heartbeat_file().get("rows") == 1, seconds=SECONDS)
    psql(shell.dsn, "insert into orders select i, 'x' from generate_series(102, 1101) i")
    until(lambda: shell.heartbeat_file().get("rows") == 1001, seconds=SECONDS)

    stream.send_signal(number)
    printed, errors = stream.communicate(timeout=SECONDS)

    assert stream.returncode == 0, errors
    assert "landed 1,001 changes" in printed
    assert "stopping: landing what is complete" in errors
    assert shell.json("status")["watermark"] == shell.confirmed()
    assert shell.pgstream("stream", "--drain").startswith("landed 0 changes")


@pytest.mark.long
def test_interrupted_setup_goes_on_where_it_was(shell, spark):
    setup = shell.start("setup")
    until(lambda: shell.confirmed() is not None, seconds=SECONDS)
    setup.send_signal(signal.SIGTERM)
    _, errors = setup.communicate(timeout=SECONDS)
    assert setup.returncode == 143, errors
    assert "Traceback" not in errors
    shell.pgstream("setup")
    status = shell.json("status")
    assert all(table["copied_at"] for table in status["tables"])
