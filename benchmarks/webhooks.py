"""Signed deliveries to a subscriber on this machine, against httpx posting the same bodies."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx

from benchmarks.measure import Measured
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.sinks.webhook.addresses import anywhere
from pgstream_dagster.sinks.webhook.delivery import Endpoint, Limits, WebhookSink
from pgstream_dagster.sinks.webhook.signing import Secret
from pgstream_dagster.sinks.webhook.subscription import Subscription
from pgstream_dagster.sinks.webhook.transport import Poster

MOST = 10_000
"""Calls of a round: each takes about half a millisecond of CPU on either side."""

BODY = b'{"event_id":"1-16/B374D848-0","op":"insert","after":{"note":"' + b"x" * 300 + b'"}}'
BATCH = 1_000


async def subscriber(_scope: Any, receive: Any, send: Any) -> None:
    """Answer 204 to everything; run by uvicorn in a process of its own."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def deliveries(_major: int, rows: int, rounds: int) -> Iterator[tuple[Measured, Measured]]:
    """One change a call, one call at a time: (ours, httpx alone) a round."""
    count = min(rows, MOST)
    with listening() as url:
        for _ in range(rounds):
            yield ours(url, count, Limits()), bare(url, count)


def ours(url: str, count: int, limits: Limits) -> Measured:
    """A sink's deliveries."""
    poster = Poster(url, timeout_seconds=30, connections=limits.worker_count, is_allowed=anywhere)
    endpoint = Endpoint(Subscription(url, name="bench"), poster, [Secret(b"0" * 32)])
    changes = [change(number) for number in range(count)]
    with closing(WebhookSink(endpoint, lambda given: BODY, limits)) as sink:
        sink.open()
        sink.deliver(ChangeBatch(changes[:50]))
        began, cpu = time.perf_counter(), time.process_time()
        for start in range(0, count, BATCH):
            verdicts = sink.deliver(ChangeBatch(changes[start : start + BATCH]))
            assert not verdicts, next(iter(verdicts.values()))
        return Measured(count, time.perf_counter() - began, time.process_time() - cpu)


def bare(url: str, count: int) -> Measured:
    """What httpx alone does: no signature, no check of addresses, no order to keep."""
    headers = {"content-type": "application/json"}
    with httpx.Client() as client:
        client.post(url, content=BODY, headers=headers)
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            client.post(url, content=BODY, headers=headers).raise_for_status()
        return Measured(count, time.perf_counter() - began, time.process_time() - cpu)


def change(number: int) -> Change:
    """An insert of a row of its own."""
    return Change(
        *(1, Lsn(number), 0, Lsn(number), "insert", "public", "bench", 1, None, (str(number),))
    )


@contextmanager
def listening() -> Iterator[str]:
    """The subscriber's URL, while its process runs."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        command = [sys.executable, "-m", "uvicorn", "benchmarks.webhooks:subscriber"]
        options = ["--fd", str(server.fileno()), "--no-access-log", "--log-level", "warning"]
        process = subprocess.Popen(
            [*command, *options, "--interface", "asgi3"], pass_fds=[server.fileno()]
        )
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """What more workers and more changes a call give: `python -m benchmarks.webhooks`."""
    with listening() as url:
        for workers, size in ((1, 1), (4, 1), (1, 10), (1, 100), (4, 100)):
            limits = Limits(worker_count=workers, changes_per_request=size)
            result = ours(url, MOST, limits)
            print(
                f"{workers} worker(s), {size:>3} change(s) a call:"
                f" {result.rows_per_second:>9,.0f} changes/s, {result.cpu_us_per_row:>5.0f} us CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
