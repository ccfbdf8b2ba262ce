"""
Random deaths for some seconds, then everything compared: `python -m tests.chaos --seconds 60`.

A private Postgres under a workload; the stream is killed again and again, now and then its
walsender or the whole server instead, and the first copies before they end. The same seed makes
the same choices; the machine's speed decides where they strike. Exit code 1: something was lost,
doubled, out of order or confirmed too early; what is left is kept for a look.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psycopg

from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.lsn import Lsn
from tests.proof import oracle, rows, runner, workload
from tests.proof.case import Case, execute

QUIET_SECONDS = 300.0
"""To bring everything to rest at the end, also on a machine that has other things to do."""

LIFE_SECONDS = (2.0, 12.0)
"""Of a stream before something happens to it: from still starting to well under way."""

END_WALSENDERS = "select pg_terminate_backend(active_pid) from pg_replication_slots where active"

EVENTS = {
    "stream killed": 10,
    "walsender ended": 3,
    "server restarted": 2,
    "server killed": 2,
    "stream asked to stop": 2,
}
"""What happens, and how often in relation."""


class Chaos:
    """One run; `by` makes every choice."""

    def __init__(self, server: Postgres, case: Case, seed: int) -> None:
        self.server, self.case = server, case
        self.by = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.stream: subprocess.Popen[bytes] | None = None

    def run(self, seconds: float) -> None:
        """Set up, if need be more than once, then let things happen until the time is over."""
        began = time.monotonic()
        deadline = began + seconds
        self.set_up(began + seconds / 3)
        while time.monotonic() < deadline:
            self.keep_streaming()
            time.sleep(self.by.uniform(*LIFE_SECONDS))
            event = self.by.choices(list(EVENTS), list(EVENTS.values()))[0]
            self.happen(event)
            self.counts[event] += 1

    def set_up(self, deadline: float) -> None:
        """Copies that may be killed until `deadline`, then one run that may end."""
        while time.monotonic() < deadline:
            with runner.running("setup", self.case.pipeline) as process:
                patience = self.by.uniform(*LIFE_SECONDS) * (1 + self.counts["setup killed"])
                try:
                    code = process.wait(patience if self.by.random() < 0.7 else None)
                except subprocess.TimeoutExpired:
                    self.counts["setup killed"] += 1
                    continue
            if code == 0:
                return
            raise AssertionError(f"setup ended with {code}:\n{self.said('setup')}")
        self.case.set_up()

    def keep_streaming(self) -> None:
        """A stream runs; one that ended by itself is a failure."""
        if self.stream is None:
            self.stream = runner.spawn("stream", self.case.pipeline)
        elif (code := self.stream.poll()) is not None:
            raise AssertionError(f"the stream ended by itself with {code}:\n{self.said('stream')}")

    def happen(self, event: str) -> None:
        """Do it."""
        match event:
            case "stream killed":
                self.end_stream(signal.SIGKILL)
            case "stream asked to stop":
                self.end_stream(signal.SIGTERM)
            case "walsender ended":
                execute(self.case.dsn, END_WALSENDERS)
            case "server restarted":
                self.server.restart("fast")
            case "server killed":
                self.server.kill()
                self.server.start()
            case _:
                raise AssertionError(event)

    def end_stream(self, how: signal.Signals) -> None:
        """Kill it, or ask it to end and wait for that."""
        if self.stream is None:
            return
        self.stream.send_signal(how)
        code = self.stream.wait(QUIET_SECONDS)
        # Before Python has set its handler a SIGTERM ends the process as it is.
        assert code in (0, -how), f"the stream ended with {code}:\n{self.said('stream')}"
        self.stream = None

    def settle(self) -> tuple[int, int]:
        """Bring everything to rest and compare; the changes and rows compared."""
        self.case.workload.join()
        self.wait_until_landed(runner.flushed(self.case.dsn))
        self.end_stream(signal.SIGTERM)
        pipeline = self.case.pipeline
        changes = oracle.assert_log_equals(
            self.case.oracle, pipeline.lake.change_log, runner.app(pipeline)
        )
        return changes, rows.assert_log_folds_to_source(pipeline, workload.TABLES)

    def wait_until_landed(self, wanted: Lsn) -> None:
        """Until the stream has landed everything before `wanted`."""
        log, app = runner.change_log(self.case.pipeline), runner.app(self.case.pipeline)
        deadline = time.monotonic() + QUIET_SECONDS
        while not (marks := oracle.watermarks(log, app)) or marks[-1] < wanted:
            self.keep_streaming()
            if time.monotonic() > deadline:
                end = marks[-1] if marks else "nothing"
                raise AssertionError(f"landed {end}, wanted {wanted}:\n{self.said('stream')}")
            time.sleep(0.2)

    def said(self, operation: str) -> str:
        """The end of what the processes printed."""
        return runner.said_by(operation, self.case.pipeline)

    def close(self) -> None:
        """Leave no process behind."""
        if self.stream is not None:
            self.stream.kill()
            self.stream.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print what happened, say by the exit code whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--major", type=int, default=15)
    given = parser.parse_args(arguments)
    print(f"chaos: seed {given.seed}, {given.seconds:.0f} s, Postgres {given.major}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="pgstream-chaos-"))
    try:
        summary = chaos(given.major, folder, given.seed, given.seconds)
    except (AssertionError, psycopg.Error, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"FAILED, seed {given.seed}; lake and logs are in {folder}\n{error}", flush=True)
        return 1
    print(summary, flush=True)
    shutil.rmtree(folder)
    return 0


def chaos(major: int, folder: Path, seed: int, seconds: float) -> str:
    """One run in `folder`; a line about it."""
    with Postgres(major) as server:
        execute(server.dsn, "create database chaos")
        case = Case(server.dsn_of("chaos"), folder, seed=seed, burst=400, rate=15)
        case.workload.run(60)
        run = Chaos(server, case, seed)
        try:
            with runner.Sampler(case.pipeline) as sampler, case.workload:
                run.run(seconds)
                changes, kept = run.settle()
        finally:
            run.close()
    happened = ", ".join(f"{count} x {event}" for event, count in sorted(run.counts.items()))
    return (
        f"identical: {changes:,} changes once and in order, {kept:,} rows;"
        f" {case.workload.counts['committed']:,} transactions; {happened};"
        f" confirmed <= watermark in {sampler.samples:,} samples"
    )


if __name__ == "__main__":
    sys.exit(main())
