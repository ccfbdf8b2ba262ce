"""
Random deaths for some seconds, then everything compared: `python -m tests.chaos --seconds 60`.

A private Postgres under a workload, and a private OpenSearch with one of its tables behind an
alias. The stream is killed again and again, now and then its walsender or the whole server instead,
and the first copies before they end; so are the indexer, re-indexes and the search node. The same
seed makes the same choices; the machine's speed decides where they strike. Exit code 1: something
was lost, doubled, out of order or confirmed too early; what is left is kept for inspection.
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
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.embedded.opensearch import OpenSearch
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.errors import NotCopied, SearchUnreachable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.search.control import State
from pgstream_dagster.search.session import SearchSession, opened
from tests.support.harness import oracle, rows, runner, search_pipelines, workload
from tests.support.harness.case import Case, execute

QUIET_SECONDS = 300.0
"""To bring everything to rest at the end, also on a machine that has other things to do."""

LIFE_SECONDS = (2.0, 12.0)
"""Of a stream before something happens to it: from still starting to well under way."""

END_WALSENDERS = "select pg_terminate_backend(active_pid) from pg_replication_slots where active"

ALIAS = "documents"
"""Of the table with large values, keys that move, and truncates."""

EVENTS = {
    "stream killed": 10,
    "walsender ended": 3,
    "server restarted": 2,
    "server killed": 2,
    "stream asked to stop": 2,
    "indexer killed": 5,
    "indexer asked to stop": 1,
    "re-index killed": 2,
    "search node killed": 2,
}
"""What happens, and how often in relation."""


class Chaos:
    """One run; `by` makes every choice."""

    def __init__(self, server: Postgres, node: OpenSearch, case: Case, seed: int) -> None:
        self.server, self.node, self.case = server, node, case
        config = IndexConfig(table="public.documents", settings={"number_of_replicas": 0})
        self.searched = search_pipelines.with_search(case.pipeline, node.url, **{ALIAS: config})
        self.by = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, seconds: float) -> None:
        """Set up, if need be more than once, then let things happen until the time is over."""
        began = time.monotonic()
        deadline = began + seconds
        self.set_up(began + seconds / 3)
        while time.monotonic() < deadline:
            self.keep_going()
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
            raise AssertionError(f"setup ended with {code}:\n{self.output('setup')}")
        self.case.set_up()

    def keep_going(self) -> None:
        """A stream and an indexer run; one that ended by itself is a failure."""
        for name, process in self.running.items():
            if (code := process.poll()) is not None:
                raise AssertionError(f"{name} ended by itself with {code}:\n{self.output(name)}")
        if "stream" not in self.running:
            self.running["stream"] = runner.spawn("stream", self.case.pipeline)
        if "index" not in self.running:
            self.running["index"] = search_pipelines.spawn("index", self.searched, ALIAS)

    def happen(self, event: str) -> None:
        """Do it."""
        match event:
            case "stream killed":
                self.end("stream", signal.SIGKILL)
            case "stream asked to stop":
                self.end("stream", signal.SIGTERM)
            case "indexer killed":
                self.end("index", signal.SIGKILL)
            case "indexer asked to stop":
                self.end("index", signal.SIGTERM)
            case "re-index killed":
                self.kill_reindex()
            case "search node killed":
                self.node.kill()
                self.node.start()
            case "walsender ended":
                execute(self.case.dsn, END_WALSENDERS)
            case "server restarted":
                self.server.restart("fast")
            case "server killed":
                self.server.kill()
                self.server.start()
            case _:
                raise AssertionError(event)

    def end(self, name: str, how: signal.Signals) -> None:
        """Kill one of the processes, or ask it to end and wait for that."""
        process = self.running.get(name)
        if process is None:
            return
        process.send_signal(how)
        code = process.wait(QUIET_SECONDS)
        # Before Python has set its handler a SIGTERM ends the process as it is.
        assert code in (0, -how), f"{name} ended with {code}:\n{self.output(name)}"
        del self.running[name]

    def kill_reindex(self) -> None:
        """Begin a re-index beside the indexer, and kill it unless it was quicker."""
        process = search_pipelines.spawn("reindex", self.searched, ALIAS)
        try:
            process.wait(self.by.uniform(*LIFE_SECONDS) * 2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def settle(self) -> tuple[int, int, int]:
        """Bring everything to rest and compare; the changes, rows and documents compared."""
        self.case.workload.join()
        target = runner.flushed(self.case.dsn)
        self.wait_until("landed", lambda: self.is_landed(target))
        with opened(self.searched) as asked:
            self.wait_until("indexed", lambda: is_indexed(asked, target))
        self.end("stream", signal.SIGTERM)
        self.end("index", signal.SIGTERM)
        pipeline = self.case.pipeline
        changes = oracle.assert_log_equals(
            self.case.oracle, pipeline.lake.change_log, runner.app(pipeline)
        )
        folded = rows.assert_log_folds_to_source(pipeline, workload.TABLES)
        difference = search_pipelines.against_log(self.searched, ALIAS)
        assert difference.identical, f"the index is not what the log says: {difference}"
        return changes, folded, difference.documents

    def is_landed(self, target: Lsn) -> bool:
        """Whether the stream has landed everything before `target`."""
        log, app = runner.change_log(self.case.pipeline), runner.app(self.case.pipeline)
        marks = oracle.watermarks(log, app)
        return bool(marks) and marks[-1] >= target

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        """While stream and indexer continue."""
        deadline = time.monotonic() + QUIET_SECONDS
        while not is_so():
            self.keep_going()
            if time.monotonic() > deadline:
                output = f"{self.output('stream')}\n{self.output('index')}"
                raise AssertionError(f"not {what} after {QUIET_SECONDS:.0f} s:\n{output}")
            time.sleep(0.2)

    def output(self, operation: str) -> str:
        """The end of what the processes printed."""
        return runner.output_of(operation, self.case.pipeline)

    def close(self) -> None:
        """Leave no process behind."""
        for process in self.running.values():
            process.kill()
            process.wait()


def is_indexed(asked: SearchSession, target: Lsn) -> bool:
    """Whether the alias is on an index of the table as it is now, that says all up to `target`."""
    try:
        generation, relation = asked.live(ALIAS), asked.relation(ALIAS)
    except (NotCopied, SearchUnreachable):
        return False
    return (
        generation is not None
        and generation.state is State.LIVE
        and generation.outdated is None
        and (generation.relation_id, generation.copied_at)
        == (relation.relation_id, relation.copied_at)
        and generation.delivered >= target
    )


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
    with Postgres(major) as server, OpenSearch("3") as node:
        execute(server.dsn, "create database chaos")
        case = Case(server.dsn_of("chaos"), folder, seed=seed, burst=400, rate=15)
        case.workload.run(60)
        run = Chaos(server, node, case, seed)
        try:
            with runner.Sampler(case.pipeline) as sampler, case.workload:
                run.run(seconds)
                changes, kept, documents = run.settle()
        finally:
            run.close()
    happened = ", ".join(f"{count} x {event}" for event, count in sorted(run.counts.items()))
    return (
        f"identical: {changes:,} changes once and in order, {kept:,} rows, {documents:,} documents;"
        f" {case.workload.counts['committed']:,} transactions; {happened};"
        f" confirmed <= watermark in {sampler.samples:,} samples"
    )


if __name__ == "__main__":
    sys.exit(main())
