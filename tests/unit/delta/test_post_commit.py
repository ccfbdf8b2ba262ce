"""What follows a commit runs in order, in the background, and never takes the commit with it."""

from __future__ import annotations

import logging
import threading

import pytest

from pgstream_dagster.delta.post_commit import Hook, Hooks


def test_hooks_run_in_order_and_wait_sees_them_done():
    ran: list[int] = []
    hooks = Hooks("t")
    for n in range(5):
        hooks.submit(n, [Hook("checkpoint", lambda n=n: ran.append(n))])
    hooks.wait()
    assert ran == [0, 1, 2, 3, 4]
    hooks.close()


def test_a_replaceable_hook_gives_way_to_a_newer_one():
    ran: list[str] = []
    running, go_on = threading.Event(), threading.Event()
    hooks = Hooks("t")

    def slow() -> None:
        running.set()
        go_on.wait(10)

    hooks.submit(0, [Hook("checkpoint", slow)])
    running.wait(10)
    for n in (1, 2, 3):
        hooks.submit(
            n,
            [
                Hook("checkpoint", lambda n=n: ran.append(f"checkpoint {n}")),
                Hook("checksum", lambda n=n: ran.append(f"checksum {n}"), is_replaceable=True),
            ],
        )
    go_on.set()
    hooks.close()
    assert ran == ["checkpoint 1", "checkpoint 2", "checkpoint 3", "checksum 3"]


def test_a_failing_hook_is_logged_and_counted(caplog: pytest.LogCaptureFixture):
    ran: list[int] = []

    def fail() -> None:
        raise OSError("disk full")

    hooks = Hooks("the table")
    with caplog.at_level(logging.WARNING):
        hooks.submit(7, [Hook("checkpoint", fail)])
        hooks.submit(8, [Hook("checkpoint", lambda: ran.append(8))])
        hooks.close()
    assert hooks.failures == 1
    assert ran == [8]
    assert "the table: the checkpoint after commit 7 failed" in caplog.text


def test_close_waits_and_may_be_called_again():
    ran: list[int] = []
    after: list[int] = []
    hooks = Hooks("t", lambda: after.append(1))
    hooks.close()
    hooks.submit(1, [Hook("checksum", lambda: ran.append(1), is_replaceable=True)])
    hooks.close()
    hooks.close()
    assert (ran, after) == ([1], [1])
