"""What follows a commit runs in order, in the background, and never takes the commit with it."""

from __future__ import annotations

import logging
import threading

import pytest

from pgstream_dagster.delta.post_commit import PostCommit, PostCommitTask


def test_tasks_run_in_order_and_wait_sees_them_done():
    ran: list[int] = []
    post_commit = PostCommit("t")
    for n in range(5):
        post_commit.submit(n, [PostCommitTask("checkpoint", lambda n=n: ran.append(n))])
    post_commit.wait()
    assert ran == [0, 1, 2, 3, 4]
    post_commit.close()


def test_a_replaceable_task_gives_way_to_a_newer_one():
    ran: list[str] = []
    running, go_on = threading.Event(), threading.Event()
    post_commit = PostCommit("t")

    def slow() -> None:
        running.set()
        go_on.wait(10)

    post_commit.submit(0, [PostCommitTask("checkpoint", slow)])
    running.wait(10)
    for n in (1, 2, 3):
        post_commit.submit(
            n,
            [
                PostCommitTask("checkpoint", lambda n=n: ran.append(f"checkpoint {n}")),
                PostCommitTask(
                    "checksum", lambda n=n: ran.append(f"checksum {n}"), is_replaceable=True
                ),
            ],
        )
    go_on.set()
    post_commit.close()
    assert ran == ["checkpoint 1", "checkpoint 2", "checkpoint 3", "checksum 3"]


def test_a_failing_task_is_logged_and_counted(caplog: pytest.LogCaptureFixture):
    ran: list[int] = []

    def fail() -> None:
        raise OSError("disk full")

    post_commit = PostCommit("the table")
    with caplog.at_level(logging.WARNING):
        post_commit.submit(7, [PostCommitTask("checkpoint", fail)])
        post_commit.submit(8, [PostCommitTask("checkpoint", lambda: ran.append(8))])
        post_commit.close()
    assert post_commit.failures == 1
    assert ran == [8]
    assert "the table: the checkpoint after commit 7 failed" in caplog.text


def test_close_waits_and_may_be_called_again():
    ran: list[int] = []
    after: list[int] = []
    post_commit = PostCommit("t", lambda: after.append(1))
    post_commit.close()
    post_commit.submit(1, [PostCommitTask("checksum", lambda: ran.append(1), is_replaceable=True)])
    post_commit.close()
    post_commit.close()
    assert (ran, after) == ([1], [1])
