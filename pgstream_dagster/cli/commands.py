"""
The commands. Each reads the pipeline, runs one operation in a worker thread, prints its result.

Heavy modules (Spark, Arrow) are imported where they are used, so that `--help` is fast.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from pgstream_dagster.cli import exits, launch, render
from pgstream_dagster.cli.exits import ExitCode
from pgstream_dagster.cli.interrupt import interruptible
from pgstream_dagster.cli.launch import PARTITION_TAG, Request, Requests, op_request
from pgstream_dagster.cli.progress import (
    CopyLine,
    IndexLine,
    Progress,
    ReindexLine,
    StreamLine,
)

if TYPE_CHECKING:
    from pgstream_dagster.copy.copying import Copied
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.stop import Stop
    from pgstream_dagster.upkeep.reconcile import Reconciliation

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

OVERVIEW: Final = f"""\
Copy a Postgres database and stream every committed change of it into a Delta Lake change log.

pgstream.yaml describes what to capture; the environment or .env says how to reach the source
(PGSTREAM_DSN) and the lake (PGSTREAM_LAKE).

\b
Example:
  pgstream setup && pgstream stream

\b
Exit codes:
{exits.described()}
"""

RECONCILE_SECONDS: Final = 60.0
"""A stream that keeps up needs less than a second; without one the log never gets there."""


class InOrder(click.Group):
    """A group that lists its commands in the order of this module, which is the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names for `--help`."""
        del ctx
        return list(self.commands)


as_json = click.option("--json", "json", is_flag=True, help="Print JSON.")


@click.group(cls=InOrder, help=OVERVIEW, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The pipeline file.  [default: PGSTREAM_CONFIG, else pgstream.yaml]",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more details to stderr.")
@click.version_option(package_name="pgstream-dagster", prog_name="pgstream")
@click.pass_context
def pgstream(context: click.Context, file: Path | None, *, verbose: bool) -> None:
    """Read the options that all commands share; `OVERVIEW` is the text of `--help`."""
    context.obj = file
    log_to_stderr(verbose=verbose)


def read_pipeline(file: Path | None) -> Pipeline:
    """The pipeline of the file and the environment, which `.env` overrides as in Dagster."""
    from pgstream_dagster import settings
    from pgstream_dagster.pipeline import Pipeline

    folder = Path.cwd()
    for name in settings.overridden(os.environ, folder):
        log.warning("%s is taken from .env, not from the environment, as Dagster does", name)
    # In our environment, because libpq, the JVM and Spark's tasks read it.
    os.environ.update(settings.with_dotenv(os.environ, folder))
    return Pipeline.from_file(settings.pipeline_file(file, os.environ))


def example(*lines: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add examples, as they would be typed, to the help of a command."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        shown = "\n".join(f"  {line}" for line in lines)
        function.__doc__ = f"{inspect.getdoc(function)}\n\n\b\nExample:\n{shown}\n"
        return function

    return add


def command(
    *examples: str,
    group: click.Group = pgstream,
    name: str | None = None,
    requests: Requests | None = None,
) -> Callable[[Callable[..., Any]], click.Command]:
    """
    Add a command on a pipeline, which is its first argument; `requests` adds `--dagster` to it.

    With `--dagster` the command launches the runs that `requests` returns instead: it prints their
    ids and ends once they are queued.
    """

    def add(function: Callable[..., Any]) -> click.Command:
        @group.command(name)
        @click.pass_obj
        @example(*examples)
        @functools.wraps(function)
        def either(file: Path | None, *, in_dagster: bool = False, **options: Any) -> Any:
            # First, so that its problems are reported before anything is imported or launched.
            pipeline = read_pipeline(file)
            if not in_dagster or requests is None:
                return function(pipeline, **options)
            for request in requests(pipeline, **options):
                click.echo(f"launched run {launch.launch(request)} of job '{request.job}'")
            return ExitCode.OK

        if requests is not None:
            either.params.append(
                click.Option(
                    ["--dagster", "in_dagster"],
                    is_flag=True,
                    help="Launch it as a run of Dagster instead, and print the run's id.",
                )
            )
        return either

    return add


@command("pgstream grants | psql -d shop -U postgres", "pgstream grants --search opensearch")
@click.option("--role", help="The role that gets the rights.  [default: the role of PGSTREAM_DSN]")
@click.option(
    "--search",
    type=click.Choice(["opensearch", "elasticsearch"]),
    help="Print the role for the search cluster instead, as a request for its console.",
)
def grants(
    pipeline: Pipeline, role: str | None, *, search: Literal["opensearch", "elasticsearch"] | None
) -> None:
    """
    Print the SQL that gives our role the least rights it needs.

    Changes nothing: a superuser reviews and runs the script. It names every table that
    pgstream.yaml selects, creates the publication, which a role that owns no table cannot do, and
    lists what to drop when the pipeline is removed.
    """
    if search is not None:
        from pgstream_dagster.search.grants import role as search_role

        click.echo(search_role(search, pipeline.config.search))
        return
    from pgstream_dagster.source.grants import grants as operation

    click.echo(run_with_progress(lambda: operation(pipeline, role)))


@command(
    "pgstream check", "pgstream check --json", requests=lambda _, json: [Request("check_source")]
)
@as_json
def check(pipeline: Pipeline, *, json: bool) -> int:
    """
    Check everything that setup needs; change nothing.

    Server, rights, tables, publication, slot, folders, Java and search cluster. Each finding has
    the statement that fixes it. Exits with 1 if any finding is an error.
    """
    from pgstream_dagster.source.preflight import Severity
    from pgstream_dagster.upkeep.check import check as operation

    findings = run_with_progress(lambda: operation(pipeline))
    click.echo(render.as_json(findings) if json else render.findings(findings))
    has_errors = any(finding.severity is Severity.ERROR for finding in findings)
    return ExitCode.PROBLEM if has_errors else ExitCode.OK


@command("pgstream setup", requests=lambda _: [Request("setup")])
def setup(pipeline: Pipeline) -> None:
    """
    Create publication and slot; copy every table into the log.

    Run it once per pipeline. After an interruption it continues with the remaining tables; when
    everything exists it does nothing; after a teardown it does what resnapshot does. Writes to the
    tables continue meanwhile. Of a pipeline on Kafka it creates the lake's tables only.
    """
    from pgstream_dagster.upkeep.setup import setup as operation

    copy(partial(operation, pipeline), next_step="pgstream stream")


@command(
    "pgstream stream",
    "pgstream stream --drain",
    requests=lambda _, drain: [
        op_request("stream", "land_changes", mode="drain" if drain else "stream")
    ],
)
@click.option(
    "--drain",
    is_flag=True,
    help="End once all that is committed by now is landed, and due copies too. It fails if one of"
    " these cannot be made, or waits a minute for others.",
)
def stream(pipeline: Pipeline, *, drain: bool) -> None:
    """
    Land every committed change until Ctrl-C or SIGTERM.

    Then it lands and confirms what is complete and exits with 0. It reconnects when a connection is
    lost, and copies tables that join the publication. Of a pipeline on Kafka any number of
    processes may run it: they share the partitions.
    """
    from pgstream_dagster.consumer.stream import run_stream

    stop, line = threading.Event(), StreamLine()
    landed = run_with_progress(
        lambda: run_stream(pipeline, stop=stop, is_drain=drain, report=line.put),
        stop=stop,
        line=line,
    )
    click.echo(
        f"landed {landed.rows:,} changes in {landed.commits:,} commits;"
        f" watermark {landed.watermark}"
    )


@command("pgstream status", "pgstream status --json")
@as_json
def status(pipeline: Pipeline, *, json: bool) -> int:
    """
    Show watermark, lag, slot, tables and every reader of the log.

    Changes nothing. Exits with 1 if something would stop the stream, and names the remedy.
    """
    from pgstream_dagster.upkeep.readers import reader_status
    from pgstream_dagster.upkeep.status import status as operation

    now = run_with_progress(lambda: operation(pipeline))
    readers = run_with_progress(lambda: reader_status(pipeline))
    whole = render.plain(now) | {"readers": render.plain(readers)}
    click.echo(render.as_json(whole) if json else render.status(now) + render.readers(readers))
    return ExitCode.OK if now.problem is None else ExitCode.PROBLEM


@command(
    "pgstream reconcile",
    "pgstream reconcile public.orders --json",
    "pgstream reconcile --sink replica",
    "pgstream reconcile --tables",
    requests=lambda _, tables, sink, typed_tables, timeout_seconds, json: [
        op_request(
            "reconcile",
            "compare_source_and_log",
            tables=list(tables),
            timeout_seconds=timeout_seconds,
            **({"sink": sink} if sink else {}),
            **({"typed_tables": True} if typed_tables else {}),
        )
    ],
)
@click.argument("tables", nargs=-1, metavar="[TABLE...]")
@click.option(
    "--sink",
    metavar="NAME",
    help="Compare the target of this Postgres sink, at the position that it has reached.",
)
@click.option(
    "--tables",
    "typed_tables",
    is_flag=True,
    help="Compare typed tables, too, at the same position; they are merged up to it first.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    default=RECONCILE_SECONDS,
    show_default=True,
    help="Seconds the log may take to reach the position that is compared.",
)
@as_json
def reconcile(
    pipeline: Pipeline,
    tables: tuple[str, ...],
    *,
    sink: str | None,
    typed_tables: bool,
    timeout_seconds: float,
    json: bool,
) -> int:
    """
    Compare source, tables or sink with the log, value by value.

    Row by row with the fold of the log, at one position. For the source the stream must run
    meanwhile; writes and merges may continue. Of a sink, the fold has its modifiers applied, and
    the sink may run. Exits with 1 if anything differs or could not be compared, and lists the first
    keys; values are never shown.
    """
    if typed_tables:
        if sink is not None:
            raise click.UsageError("give --sink or --tables, not both")
        return _reconcile_tables(pipeline, tables, timeout_seconds, json=json)
    from pgstream_dagster.upkeep.reconcile import reconcile as of_source

    def operation(stop: Stop) -> Reconciliation:
        if sink is None:
            return of_source(pipeline, tables or None, timeout_seconds=timeout_seconds, stop=stop)
        from pgstream_dagster.upkeep.reconcile_sink import reconcile_sink

        return reconcile_sink(pipeline, sink, tables or None, stop=stop)

    done = run_cancellable(operation)
    click.echo(render.reconciliation_as_json(done) if json else render.reconciliation(done))
    return ExitCode.OK if done.identical else ExitCode.PROBLEM


def _reconcile_tables(
    pipeline: Pipeline, tables: tuple[str, ...], timeout_seconds: float, *, json: bool
) -> int:
    from pgstream_dagster.upkeep.reconcile_tables import reconcile_tables

    done = run_cancellable(
        lambda stop: reconcile_tables(
            pipeline, tables or None, timeout_seconds=timeout_seconds, stop=stop
        )
    )
    click.echo(render.typed_as_json(done) if json else render.typed_reconciliation(done))
    return ExitCode.OK if done.identical else ExitCode.PROBLEM


@command(
    "pgstream snapshot public.orders public.customers",
    requests=lambda _, tables: [
        Request("snapshot", tags={PARTITION_TAG: table}) for table in tables
    ],
)
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
def snapshot(pipeline: Pipeline, tables: tuple[str, ...]) -> None:
    """
    Copy tables again, whether the stream runs or not.

    TABLE is namespace.name, as `pgstream status` lists them. Readers start these tables again from
    the new copy.
    """
    from pgstream_dagster.copy.snapshot import snapshot as operation

    copy(partial(operation, pipeline, tables))


@command("pgstream resnapshot", requests=lambda _: [Request("resnapshot")])
def resnapshot(pipeline: Pipeline) -> None:
    """
    Repair: create a new slot and copy every table again.

    For a slot that is missing, lost, recreated or ahead, and for another source. A gap marker for
    every table records that changes are missing. Stop the stream first. After an interruption, run
    the same command again to continue.
    """
    from pgstream_dagster.upkeep.resnapshot import resnapshot as operation

    copy(partial(operation, pipeline), next_step="pgstream stream")


@command("pgstream optimize", requests=lambda _: [Request("optimize")])
def optimize(pipeline: Pipeline) -> None:
    """
    Rewrite the log's small files into large ones.

    Afterwards the history of each table is stored together. Rewrites the files of typed tables,
    too. May run while the stream lands and readers read. Run it daily, or hourly on a busy source.
    """
    from pgstream_dagster.upkeep.optimize import optimize as operation

    done = run_with_progress(lambda: operation(pipeline))
    click.echo(
        f"{done.removed_files:,} files became {done.added_files:,}"
        f" ({done.rows:,} rows, {render.size(done.bytes)})"
    )


def teardown_request(pipeline: Pipeline, *, yes: bool) -> list[Request]:
    """A run cannot ask for confirmation, so `--yes` is required."""
    pipeline.require_postgres("teardown")
    if not yes:
        raise click.UsageError(f"it drops slot {pipeline.config.source.slot!r}: give --yes")
    return [Request("teardown")]


@command("pgstream teardown --yes", requests=teardown_request)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def teardown(pipeline: Pipeline, *, yes: bool) -> None:
    """
    Drop the slot, and the publication if setup created it.

    Removes everything of ours from the source; keeps a publication that you created, and the lake.
    Stop the stream first. Later changes are not captured. To start again, run `pgstream setup`: it
    creates a new slot, records in the log that changes are missing, and copies every table.
    """
    from pgstream_dagster.upkeep.teardown import teardown as operation

    pipeline.require_postgres("teardown")
    if not (yes or sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to confirm on: give --yes")
    if not yes:
        click.confirm(
            f"drop slot {pipeline.config.source.slot!r} and publication"
            f" {pipeline.config.source.publication!r}?",
            abort=True,
            err=True,
        )
    click.echo(render.torn_down(run_with_progress(lambda: operation(pipeline))))


@pgstream.group("index")
@example("pgstream index run")
def index_group() -> None:
    """Keep search indices current, show and compare them."""


@command("pgstream index run", group=index_group, name="run", requests=lambda _: [Request("index")])
def index_run(pipeline: Pipeline) -> None:
    """
    Keep every index of pgstream.yaml current until Ctrl-C or SIGTERM.

    Run it in a process of its own, next to `pgstream stream`: it follows the log. It builds the
    index of an alias that has none, and re-indexes when a live index cannot follow a change. It
    waits while the search cluster is unavailable.
    """
    from pgstream_dagster.search.builds import BuildProcess
    from pgstream_dagster.search.index import index as operation

    stop, line, build = threading.Event(), IndexLine(), BuildProcess().build
    done = run_with_progress(
        lambda: operation(pipeline, stop=stop, report=line.put, build=build), stop=stop, line=line
    )
    click.echo(render.indexed(done))


@command("pgstream index status", "pgstream index status --json", group=index_group, name="status")
@as_json
def index_status(pipeline: Pipeline, *, json: bool) -> None:
    """Show every alias and its generations: state, documents, lag, dead letters."""
    from pgstream_dagster.search.index_status import index_status as operation

    aliases = run_with_progress(lambda: operation(pipeline))
    click.echo(render.as_json(aliases) if json else render.index_status(aliases))


@command(
    "pgstream index compare",
    "pgstream index compare flights --json",
    group=index_group,
    name="compare",
)
@click.argument("aliases", nargs=-1)
@as_json
def index_compare(pipeline: Pipeline, aliases: tuple[str, ...], *, json: bool) -> int:
    """
    Compare the index behind each of ALIASES (default: all) with the log, document by document.

    Blocks nothing: documents that change meanwhile are left to the next comparison. Exits with 1 if
    anything differs or could not be compared.
    """
    from pgstream_dagster.search.compare import compare as operation

    names = aliases or tuple(pipeline.config.search)
    compared = run_with_progress(lambda: [operation(pipeline, alias) for alias in names])
    click.echo(render.as_json(compared) if json else render.compared(compared))
    return ExitCode.OK if all(alias.identical for alias in compared) else ExitCode.PROBLEM


def reindex_request(
    pipeline: Pipeline, alias: str, *, keep: int | None, dry_run: bool
) -> list[Request]:
    """The op of one alias in the job `reindex`."""
    if dry_run:
        raise click.UsageError("--dry-run changes nothing, so there is no run to launch")
    from pgstream_dagster.assets.search import op_names

    pipeline.config.index(alias)  # raises if there is none
    op = op_names(pipeline.config.search)[alias]
    return [replace(op_request("reindex", op, keep=keep), ops=(op,))]


@command("pgstream reindex flights", "pgstream reindex flights --dagster", requests=reindex_request)
@click.argument("alias")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    help="Former indices to keep for `rollback`.  [default: as in pgstream.yaml]",
)
@click.option("--dry-run", is_flag=True, help="Check everything, show the mapping, change nothing.")
def reindex(pipeline: Pipeline, alias: str, *, keep: int | None, dry_run: bool) -> int:
    """
    Build a new index from the log, then move ALIAS to it.

    Until then the old index serves and is kept current. The new index is compared with the log,
    document by document, before the alias moves in one step.
    """
    from pgstream_dagster.search.reindex import planned
    from pgstream_dagster.search.reindex import reindex as operation

    if dry_run:
        click.echo(render.planned(run_with_progress(lambda: planned(pipeline, alias))))
        return ExitCode.OK
    line = ReindexLine()
    done = run_with_progress(
        lambda: operation(pipeline, alias, keep=keep, on_progress=line.put), line=line
    )
    click.echo("stopped" if done is None else render.reindexed(done))
    return ExitCode.OK


@command(
    "pgstream rollback flights",
    requests=lambda _, alias: [op_request("rollback", "move_alias_back", alias=alias)],
)
@click.argument("alias")
def rollback(pipeline: Pipeline, alias: str) -> None:
    """Move ALIAS back to the newest former index that was kept."""
    from pgstream_dagster.search.rollback import rollback as operation

    done = run_with_progress(lambda: operation(pipeline, alias))
    click.echo(f"{done.alias} is on {done.index} again, up to {done.delivered}")


@command(
    "pgstream redrive flights",
    requests=lambda _, alias: [op_request("redrive", "send_refused_documents", alias=alias)],
)
@click.argument("alias")
def redrive(pipeline: Pipeline, alias: str) -> int:
    """
    Send the refused documents of ALIAS again.

    They are rendered from the current rows. Exits with 1 if any is refused again.
    """
    from pgstream_dagster.search.redrive import redrive as operation

    done = run_with_progress(lambda: operation(pipeline, alias))
    click.echo(f"{done.index}: {done.sent:,} sent again, {done.refused:,} refused again")
    return ExitCode.PROBLEM if done.refused else ExitCode.OK


class Plain(logging.Formatter):
    """Lines that begin with their level."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        return f"{record.levelname.lower()}: {super().format(record)}"


def log_to_stderr(*, verbose: bool) -> None:
    """Log ours from INFO, other packages' from WARNING; stdout is for results."""
    handler = logging.StreamHandler()
    handler.setFormatter(Plain())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("pgstream_dagster").setLevel(logging.DEBUG if verbose else logging.INFO)


def copy(operation: Callable[..., Sequence[Copied]], next_step: str | None = None) -> None:
    """Run an operation that copies tables; print the copies, and the next step if there is one."""
    line, began_at = CopyLine(), time.monotonic()
    copied = run_cancellable(lambda stop: operation(on_progress=line.put, stop=stop), line)
    click.echo(render.copies(copied, time.monotonic() - began_at, next_step))


def run_with_progress(
    operation: Callable[[], T],
    *,
    stop: threading.Event | None = None,
    line: Callable[[], str | None] = lambda: None,
) -> T:
    """Run an operation with progress on stderr; a signal sets `stop`, or ends the command."""
    from pgstream_dagster.threads import run_in_thread

    with interruptible(stop), Progress(line) as progress:
        return run_in_thread(operation, stop=stop, poll=progress.refresh, patience_seconds=0)


def run_cancellable(
    operation: Callable[[Stop], T], line: Callable[[], str | None] = lambda: None
) -> T:
    """As `run_with_progress`; a signal cancels the waits of the operation and ends the command."""
    from pgstream_dagster import threads

    with interruptible(None), Progress(line) as progress:
        return threads.run_cancellable(operation, poll=progress.refresh)
