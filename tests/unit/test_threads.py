"""Operations beside the thread that hears signals."""

from __future__ import annotations

import threading

import pytest

from pgstream_dagster.threads import at_once, run_in_thread


class Interruption(BaseException):
    pass


def test_gives_the_result_of_the_operation():
    assert run_in_thread(lambda: 7) == 7


def test_raises_what_the_operation_raised():
    def fail() -> None:
        raise ValueError("said by the operation")

    with pytest.raises(ValueError, match="said by the operation"):
        run_in_thread(fail)


def test_operation_runs_in_another_thread_and_the_caller_looks():
    looked = threading.Event()
    threads: dict[str, threading.Thread] = {}

    def operation() -> None:
        threads["operation"] = threading.current_thread()
        assert looked.wait(10)

    def poll() -> None:
        threads["look"] = threading.current_thread()
        looked.set()

    run_in_thread(operation, poll=poll, poll_seconds=0.001)
    assert threads["look"] is threading.current_thread()
    assert threads["operation"] is not threading.current_thread()


def test_interrupted_caller_asks_the_operation_to_stop_and_waits_for_it():
    stop, landed = threading.Event(), threading.Event()

    def operation() -> None:
        assert stop.wait(10)
        landed.set()

    def poll() -> None:
        raise Interruption

    with pytest.raises(Interruption):
        run_in_thread(operation, stop=stop, poll=poll, poll_seconds=0.001)
    assert landed.is_set()


def test_operation_that_does_not_stop_is_left_behind():
    stop, never = threading.Event(), threading.Event()

    def poll() -> None:
        raise Interruption

    with pytest.raises(Interruption):
        run_in_thread(
            lambda: never.wait(10),
            stop=stop,
            poll=poll,
            poll_seconds=0.001,
            patience_seconds=0.01,
        )
    assert stop.is_set()
    never.set()


def test_interruption_wins_over_what_the_stopped_operation_raises():
    stop = threading.Event()

    def operation() -> None:
        stop.wait(10)
        raise ValueError("too late")

    def poll() -> None:
        raise Interruption

    with pytest.raises(Interruption):
        run_in_thread(operation, stop=stop, poll=poll, poll_seconds=0.001)


def test_several_at_once_give_their_results_in_order_and_no_more_run_than_the_limit():
    running, most = threading.Semaphore(2), threading.Barrier(2)

    def work(number: int) -> int:
        assert running.acquire(blocking=False)
        most.wait(10)  # two run at the same time
        running.release()
        return number

    assert list(at_once(work, [(1,), (2,)], limit=2)) == [1, 2]


def test_a_call_that_fails_keeps_no_other_from_being_made() -> None:
    def work(number: int) -> int:
        if number in (2, 4):
            raise ValueError(number)
        return number

    done = list[int]()
    with pytest.raises(ValueError, match="2"):
        done.extend(at_once(work, [(number,) for number in range(1, 8)], limit=3))
    assert done == [1, 3, 5, 6, 7]
