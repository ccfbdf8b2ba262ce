"""
`python -m tests.chaos --seconds N --seed S`: kill things at random under load, then compare.

Killed are the stream (SIGKILL), its walsender, a copy in progress, and the server itself (fast and
immediate). What happens and when follows from the seed; the timing of a busy machine does not.
At the end the log must be what an independent slot saw, and its fold the source.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg

from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.operations.snapshot import snapshot
from tests.proof import runner
from tests.proof.case import Case

LONGEST_LIFE_SECONDS = 8.0
"""Of a stream before something happens to it: long enough to land, short enough to happen often."""

COPIED = ("public.accounts", "public.documents")


class Chaos:
    """One run: a server, a workload, a stream that is started again whenever it is gone."""

    def __init__(self, server: Postgres, case: Case, seed: int) -> None:
        self._server, self._case = server, case
        self._random = random.Random(seed)
        self.happened: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Let things happen until the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with runner.running("stream", self._case.pipeline) as stream:
                while time.monotonic() < deadline:
                    time.sleep(self._random.uniform(0.2, LONGEST_LIFE_SECONDS))
                    happen = self._choose()
                    self.happened[happen.__name__.strip("_")] += 1
                    happen()
                    if happen == self._stream_killed:
                        break
                    assert stream.poll() is None, runner.said_by("stream", self._case.pipeline)

    def _choose(self) -> Callable[[], None]:
        chances = {
            self._stream_killed: 6,
            self._walsender_ended: 3,
            self._copy_begun: 2,
            self._server_restarted: 1,
            self._server_crashed: 1,
        }
        return self._random.choices(list(chances), list(chances.values()))[0]

    def _stream_killed(self) -> None:
        """SIGKILL, by leaving the block of its process."""

    def _walsender_ended(self) -> None:
        with psycopg.connect(self._case.dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots"
                " where slot_name = %s",
                [self._case.pipeline.config.source.slot],
            )

    def _copy_begun(self) -> None:
        """A table is copied again beside the stream; whatever comes next may end it."""

        def copy() -> None:
            try:
                snapshot(self._case.pipeline, [self._random.choice(COPIED)])
            except PgstreamError as error:  # the server was restarted under it: named, and whole
                logging.getLogger(__name__).info("a copy ended: %s", error)

        threading.Thread(target=copy, name="chaos-copy", daemon=True).start()

    def _server_restarted(self) -> None:
        self._server.restart("fast")

    def _server_crashed(self) -> None:
        self._server.restart("immediate")


def main() -> None:
    """Run, compare, say what happened; the exit code tells."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--major", type=int, default=15)
    given = parser.parse_args()
    print(f"chaos: seed {given.seed}, {given.seconds:.0f} s, Postgres {given.major}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="pgstream-chaos-"))
    with Postgres(given.major) as server:
        case = Case(server.dsn, folder, seed=given.seed, rate=60)
        case.set_up()
        chaos = Chaos(server, case, given.seed)
        with case.watched(), case.workload:
            chaos.run(given.seconds)
            changes = case.settle()
    shutil.rmtree(folder)
    said = ", ".join(f"{count} x {what}" for what, count in chaos.happened.items())
    print(f"chaos: {said}; {changes:,} changes, once each and in order; log folds to source")


if __name__ == "__main__":
    main()
