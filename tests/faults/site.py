"""A source under load behind a network that can be broken, and `pgstream` processes beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, LiteralString, Self, cast

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from pgstream_dagster.embedded.opensearch import OpenSearch
from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import oracle, rows, runner, search_pipelines, workload
from tests.support.harness.tcp_proxy import TcpProxy
from tests.support.plugins.wait import until

WAL_SENDER_TIMEOUT: Final = 5
"""Seconds; silence is noticed within three times that."""

STILL_SECONDS: Final = 120.0
"""Without progress, and what is waited for will not come, on a busy machine either."""

NAME: Final = "faults"

ALIAS: Final = "documents"

CONFIG: Final = f"""\
pipeline: {NAME}
capture: {{flush_seconds: 0.2, idle_advance_seconds: 1, catalog_check_seconds: 2}}
"""

SEARCH: Final = f"""\
search:
  {ALIAS}: {{table: public.documents, settings: {{number_of_replicas: 0}}}}
"""


class Site:
    """
    One database with the workload, set up; its pipeline reaches it through `network`.

    Use as a context manager: everything ends with the block.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        major: int = 15,
        lake: Path | None = None,
        state: Path | None = None,
        node: OpenSearch | None = None,
    ) -> None:
        self.folder, self.seed, self.node = folder, seed, node
        folder.mkdir(parents=True, exist_ok=True)
        self.lake, self.state = lake or folder / "lake", state or folder / "state"
        self.server = Postgres(major, settings={"wal_sender_timeout": f"{WAL_SENDER_TIMEOUT}s"})
        self.processes: list[subprocess.Popen[bytes]] = []
        self.stream: subprocess.Popen[bytes] | None = None
        self.epoch = 1

    def __enter__(self) -> Self:
        self.server.start()
        self.execute("create database site", dsn=self.server.dsn)
        self.dsn = self.server.dsn_of("site")
        self.execute("alter database site set logical_decoding_work_mem = '64kB'")
        workload.create(self.dsn)
        self.oracle = oracle.Oracle(self.dsn)
        self.network = TcpProxy("127.0.0.1", self.server.port).__enter__()
        self.search_network: TcpProxy | None = None
        self.variables = {
            "PGSTREAM_DSN": make_conninfo(self.dsn, port=self.network.port),
            "PGSTREAM_LAKE": str(self.lake),
            "PGSTREAM_STATE": str(self.state),
            "PGSTREAM_JVM_HEAP": "800m",
        }
        config = CONFIG
        if self.node is not None:
            port = int(self.node.url.rpartition(":")[2])
            self.search_network = TcpProxy("127.0.0.1", port).__enter__()
            self.variables["PGSTREAM_SEARCH_URL"] = f"http://127.0.0.1:{self.search_network.port}"
            config += SEARCH
        (self.folder / "pgstream.yaml").write_text(config)
        # Here, past the network: a connection that is made in this process keeps the interpreter to
        # itself, and the proxy's threads would wait for it.
        direct = {**self.variables, "PGSTREAM_DSN": self.dsn}
        self.pipeline: Pipeline = Pipeline.from_file(self.folder / "pgstream.yaml", direct)
        self.load = workload.Workload(
            self.dsn,
            self.seed,
            rate=15,
            burst=120,
            large_every=20,
            large_rows=(400, 1_200),
            truncates=False,
        )
        self.load.run(30)
        setup(self.pipeline)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            _end_all(process)
        self.network.__exit__(None, None, None)
        if self.search_network is not None:
            self.search_network.__exit__(None, None, None)
        self.server.close()

    # --- processes --------------------------------------------------------------------------------

    def pgstream(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a command; what it prints goes to `<command>.log`."""
        with self.log_of(arguments[0]).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pgstream_dagster.cli", *arguments],
                cwd=self.folder,
                env={**os.environ, **self.variables, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> None:
        """A command that must succeed."""
        process = self.pgstream(*arguments)
        until(lambda: process.poll() is not None, seconds=STILL_SECONDS, progress=self.progress)
        assert process.returncode == 0, (
            f"{arguments} ended with {process.returncode}:\n{self.output(arguments[0])}"
        )

    def log_of(self, command: str) -> Path:
        return self.folder / f"{command}.log"

    def output(self, command: str = "stream") -> str:
        """The end of what such processes printed."""
        path = self.log_of(command)
        return path.read_text(errors="replace")[-4_000:] if path.exists() else ""

    def start_stream(self, **variables: str) -> subprocess.Popen[bytes]:
        """`pgstream stream`, well under way."""
        self.stream = self.pgstream("stream", **variables)
        self.wait_until_landed()
        return self.stream

    def stop_stream(self) -> None:
        """SIGTERM: it must end with 0."""
        assert self.stream is not None
        self.stream.send_signal(signal.SIGTERM)
        until(lambda: self.stream is None or self.stream.poll() is not None, seconds=STILL_SECONDS)
        assert self.stream.returncode == 0, self.output()
        self.stream = None

    def jvm(self) -> psutil.Process:
        """Of the stream."""
        assert self.stream is not None
        children = psutil.Process(self.stream.pid).children(recursive=True)
        return next(child for child in children if child.name() == "java")

    def wait_until_ended(self, *words: str) -> None:
        """The stream ends by itself with an error that a person understands, and says `words`."""
        stream = self.stream
        assert stream is not None
        until(lambda: stream.poll() is not None, seconds=STILL_SECONDS, progress=self.output)
        output = self.output()
        assert stream.returncode in (3, 4), f"exit code {stream.returncode}:\n{output}"
        assert "an error of pgstream itself" not in output, output
        assert all(word in output for word in words), output
        self.stream = None

    def wait_until_waiting(self, *words: str) -> None:
        """The stream waits, and says `words` about what for."""
        stream = self.stream
        assert stream is not None

        def is_waiting() -> bool:
            output = self.output()
            assert stream.poll() is None, output
            return "trying again" in output and all(word in output for word in words)

        until(is_waiting, seconds=STILL_SECONDS, every=0.1, progress=self.output)

    # --- the source -------------------------------------------------------------------------------

    def execute(self, *statements: str, dsn: str | None = None) -> None:
        """Directly, past the network."""
        with psycopg.connect(dsn or self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(cast("LiteralString", statement))

    @contextmanager
    def under_load(self, transactions: int = 60) -> Iterator[None]:
        """Writers continue during the block, and some way beyond its beginning."""
        with self.load:
            self.load.wait_for(self.load.counts["committed"] + 10, timeout_seconds=STILL_SECONDS)
            yield
            until(
                lambda: self.load.counts["committed"] >= transactions,
                seconds=STILL_SECONDS,
                progress=lambda: self.load.counts["committed"],
            )

    @property
    def watermark(self) -> Lsn:
        marks = oracle.watermarks(
            runner.change_log(self.pipeline), runner.app(self.pipeline, self.epoch)
        )
        return marks[-1] if marks else Lsn(0)

    def progress(self) -> object:
        """What changes while anything gets on."""
        log = runner.change_log(self.pipeline) / "_delta_log"
        return len(list(log.glob("*.json"))), self.watermark

    def wait_until_landed(self) -> None:
        """All that is committed now, by a stream that runs to the end."""
        target = runner.flushed(self.dsn)
        self.execute("select pg_logical_emit_message(true, 'pgstream', '')")

        def is_landed() -> bool:
            if self.stream is not None and self.stream.poll() is not None:
                raise AssertionError(
                    f"the stream ended with {self.stream.returncode}:\n{self.output()}"
                )
            return self.watermark > target  # `setup` left it there: so far came no stream yet

        try:
            until(is_landed, seconds=STILL_SECONDS, every=0.2, progress=self.progress)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None

    # --- comparison -------------------------------------------------------------------------------

    def compare(self) -> int:
        """Wait, then: the log is what the second slot saw, and folds to the source; the changes."""
        self.wait_until_landed()
        changes = oracle.assert_log_equals(
            self.oracle, self.pipeline.lake.change_log, runner.app(self.pipeline, self.epoch)
        )
        self.compare_rows()
        return changes

    def compare_rows(self) -> None:
        """Wait, then: the log folds to the source, each position once."""
        self.wait_until_landed()

        def is_equal() -> bool:
            try:
                rows.assert_log_folds_to_source(self.pipeline, workload.TABLES, epoch=self.epoch)
            except AssertionError:
                return False
            return True

        quiet = 40.0  # a copy that failed is tried again after 10 seconds
        try:
            until(is_equal, seconds=quiet, every=0.5, progress=self.progress)
        except AssertionError:
            rows.assert_log_folds_to_source(self.pipeline, workload.TABLES, epoch=self.epoch)

    def compare_index(self) -> None:
        """Wait until the index has all that the log has; it is what the log folds to."""
        target = self.watermark
        pipeline = search_pipelines.with_search(
            self.pipeline, self.node.url, **self.pipeline.config.search
        )  # type: ignore[union-attr]

        def delivered() -> Lsn:
            generations = search_pipelines.status_of(pipeline, ALIAS)
            live = [Lsn(g.delivered) for g in generations if g.state == "live"]
            return max(live, default=Lsn(0))

        until(lambda: delivered() >= target, seconds=STILL_SECONDS, every=0.5, progress=delivered)
        difference = search_pipelines.against_log(pipeline, ALIAS)
        assert difference.identical, f"the index is not what the log says: {difference}"


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """A process with its JVM, whatever state it is in."""
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
    process.wait()


SHIFT: Final = """\
import os, pathlib, time

def shifted(clock, unit):
    shift = pathlib.Path(os.environ["CLOCK_SHIFT"])
    return lambda: clock() + unit * int(shift.read_text() or 0)

time.time, time.time_ns = shifted(time.time, 1), shifted(time.time_ns, 10**9)
"""


def clock_shift(folder: Path) -> str:
    """
    The PYTHONPATH of a process whose clock is set by the file in CLOCK_SHIFT, in seconds.

    libfaketime is no way to do that: with it, Python's `sleep` fails.
    """
    site = folder / "clock-shift"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(SHIFT)
    return os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """
    A file system of its own, for as long as the block runs.

    Raises:
        PermissionError: only root may mount one.
    """
    if os.geteuid() != 0:
        raise PermissionError("only root may mount a file system")
    folder.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*arguments: str) -> None:
    """Raises PermissionError where a container forbids it."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(done.stderr.strip())


def fill(folder: Path) -> Path:
    """A file that takes all the room there is."""
    path = folder / "filled"
    with path.open("wb", buffering=0) as file:
        block = b"\0" * (1 << 16)
        while block:
            try:
                file.write(block)
            except OSError:
                block = block[: len(block) // 2]
    return path
