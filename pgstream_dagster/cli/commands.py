"""
The commands. Each reads the pipeline, runs one operation beside the main thread, prints its result.

Heavy imports (Spark, Arrow) are made where they are used: `--help` answers at once.
"""

from __future__ import annotations

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

from pgstream_dagster.cli import exits, render
from pgstream_dagster.cli.exits import ExitCode
from pgstream_dagster.cli.interrupt import heard
from pgstream_dagster.cli.launch import PARTITION_TAG, Request, launchable, of_op
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

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

OVERVIEW: Final = f"""\
Copy a Postgres database and stream every committed change of it into a Delta Lake change log.

pgstream.yaml says what to do, the environment or .env how to reach the source (PGSTREAM_DSN) and
the lake (PGSTREAM_LAKE).

\b
Example:
  pgstream setup && pgstream stream

\b
Exit codes:
{exits.described()}
"""

RECONCILE_SECONDS: Final = 60.0
"""A stream that keeps up is there within a second; without one the log never gets there."""


class Context:
    """What the options in front of the command said; the pipeline is read by the first who asks."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def pipeline(self) -> Pipeline:
        """The pipeline of the file and the environment, over which `.env` goes as in Dagster."""
        from pgstream_dagster import settings
        from pgstream_dagster.pipeline import Pipeline

        folder = Path.cwd()
        for name in settings.overridden(os.environ, folder):
            log.warning("%s is taken from .env, not from the environment, as Dagster does", name)
        # Into our own environment: libpq, the JVM and Spark's tasks read theirs.
        os.environ.update(settings.with_dotenv(os.environ, folder))
        return Pipeline.from_file(settings.pipeline_file(self._file, os.environ))


def example(*lines: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an example to the help of a command, as it would be typed."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        shown = "\n".join(f"  {line}" for line in lines)
        command.__doc__ = f"{inspect.getdoc(command)}\n\n\b\nExample:\n{shown}\n"
        return command

    return add


ORDER: Final = (
    *("grants", "check", "setup", "stream", "status", "reconcile", "snapshot", "resnapshot"),
    *("optimize", "teardown", "index", "reindex", "rollback", "redrive", "demo", "dev"),
)
"""As they are used, from the first day on."""


class InOrder(click.Group):
    """A group that lists its commands as they are used, with whole summaries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names for `--help`; one that is not in `ORDER` is an error of ours."""
        return sorted(super().list_commands(ctx), key=ORDER.index)


as_json = click.option("--json", "json", is_flag=True, help="Print JSON for a machine.")


@click.group(cls=InOrder, help=OVERVIEW, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The pipeline file.  [default: PGSTREAM_CONFIG, else pgstream.yaml]",
)
@click.option("-v", "--verbose", is_flag=True, help="Say more of what happens (to stderr).")
@click.version_option(package_name="pgstream-dagster", prog_name="pgstream")
@click.pass_context
def pgstream(context: click.Context, file: Path | None, *, verbose: bool) -> None:
    """Read the options that all commands share; `OVERVIEW` is the text of `--help`."""
    context.obj = Context(file)
    log_to_stderr(verbose=verbose)


@pgstream.command()
@click.option("--role", help="Whom the rights are for.  [default: the role of PGSTREAM_DSN]")
@click.option(
    "--search",
    type=click.Choice(["opensearch", "elasticsearch"]),
    help="Print the role for the search cluster instead, as a request for its console.",
)
@click.pass_obj
@example("pgstream grants | psql -d shop -U postgres", "pgstream grants --search opensearch")
def grants(
    context: Context, role: str | None, *, search: Literal["opensearch", "elasticsearch"] | None
) -> None:
    """
    Print the SQL that gives our role the least rights it needs.

    For a superuser to read and run; nothing is changed here. It names every table that
    pgstream.yaml asks for, makes the publication that a role which owns no table cannot make, and
    says what is to be dropped in the end.
    """
    pipeline = context.pipeline()
    if search is not None:
        from pgstream_dagster.search.grants import role as role_of_search

        click.echo(role_of_search(search, pipeline.config.search))
        return
    from pgstream_dagster.source.grants import grants as operation

    click.echo(run_with_progress(lambda: operation(pipeline, role)))


@pgstream.command()
@as_json
@click.pass_obj
@launchable(lambda of, json: [Request("check_source")])
@example("pgstream check", "pgstream check --json")
def check(context: Context, *, json: bool) -> int:
    """
    Look at everything that setup needs; change nothing.

    Server, rights, tables, publication, slot, folders, Java and search cluster; each finding with
    the statement that helps. Exits with 1 when one of them is an error.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.source.preflight import Severity
    from pgstream_dagster.upkeep.check import check as operation

    found = run_with_progress(lambda: operation(pipeline))
    click.echo(render.as_json(found) if json else render.findings(found))
    is_wrong = any(finding.severity is Severity.ERROR for finding in found)
    return ExitCode.PROBLEM if is_wrong else ExitCode.OK


@pgstream.command()
@click.pass_obj
@launchable(lambda of: [Request("setup")])
@example("pgstream setup")
def setup(context: Context) -> None:
    """
    Make publication and slot; copy every table into the log.

    Run once per pipeline. After an interruption it goes on with the tables that are left; when
    everything is there it does nothing; after a teardown it does what resnapshot does. Writes go on
    meanwhile.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.upkeep.setup import setup as operation

    copy(partial(operation, pipeline), next_step="pgstream stream")


@pgstream.command()
@click.option("--drain", is_flag=True, help="End when everything committed before now has landed.")
@click.pass_obj
@launchable(
    lambda of, drain: [of_op("stream", "land_changes", mode="drain" if drain else "stream")]
)
@example("pgstream stream", "pgstream stream --drain")
def stream(context: Context, *, drain: bool) -> None:
    """
    Land every committed change until Ctrl-C or SIGTERM.

    Then what is complete is landed and confirmed, and the command ends with 0. A lost connection
    is made again. Tables that join the publication are copied by themselves.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.capture.stream import current_lsn
    from pgstream_dagster.capture.stream import stream as operation

    stop, line = threading.Event(), StreamLine()
    until = current_lsn(pipeline) if drain else None
    landed = run_with_progress(
        lambda: operation(pipeline, stop=stop, until=until, report=line.put),
        stop=stop,
        line=line,
    )
    click.echo(
        f"landed {landed.rows:,} changes in {landed.commits:,} commits;"
        f" watermark {landed.watermark}"
    )


@pgstream.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@click.pass_obj
@launchable(
    lambda of, tables: [Request("snapshot", tags={PARTITION_TAG: table}) for table in tables]
)
@example("pgstream snapshot public.orders public.customers")
def snapshot(context: Context, tables: tuple[str, ...]) -> None:
    """
    Copy tables again, while the stream runs or not.

    TABLE is namespace.name, as `pgstream status` lists them. Readers start these tables again.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.copy.snapshot import snapshot as operation

    copy(partial(operation, pipeline, tables))


@pgstream.command()
@click.pass_obj
@launchable(lambda of: [Request("resnapshot")])
@example("pgstream resnapshot")
def resnapshot(context: Context) -> None:
    """
    Repair: a new slot, and every table copied again.

    A gap marker for every table says what is missing. For a slot that is missing, lost, recreated
    or ahead, and for another source. Stop the stream first. After an interruption the same command
    goes on.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.upkeep.resnapshot import resnapshot as operation

    copy(partial(operation, pipeline), next_step="pgstream stream")


@pgstream.command()
@as_json
@click.pass_obj
@example("pgstream status", "pgstream status --json")
def status(context: Context, *, json: bool) -> int:
    """
    Show watermark, lag, slot, publication and tables.

    Nothing is changed. Exits with 1 when something would stop the stream, and says what helps.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.upkeep.status import status as operation

    found = run_with_progress(lambda: operation(pipeline))
    click.echo(render.as_json(found) if json else render.status(found))
    return ExitCode.OK if found.problem is None else ExitCode.PROBLEM


@pgstream.command()
@click.argument("tables", nargs=-1, metavar="[TABLE...]")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    default=RECONCILE_SECONDS,
    show_default=True,
    help="Seconds the log may take to reach the position that is compared.",
)
@as_json
@click.pass_obj
@launchable(
    lambda of, tables, timeout_seconds, json: [
        of_op(
            "reconcile",
            "compare_source_and_log",
            tables=list(tables),
            timeout_seconds=timeout_seconds,
        )
    ]
)
@example("pgstream reconcile", "pgstream reconcile public.orders --json")
def reconcile(
    context: Context, tables: tuple[str, ...], *, timeout_seconds: float, json: bool
) -> int:
    """
    Compare the source with the log, value by value.

    Row by row with the fold of the log, at one position. The stream must run meanwhile, and the
    source may be written to. Exits with 1 when anything differs or could not be compared, and lists
    the first keys; values are never shown.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.upkeep.reconcile import reconcile as operation

    found = run_cancellable(
        lambda stop: operation(pipeline, tables or None, timeout_seconds=timeout_seconds, stop=stop)
    )
    said = render.reconciliation_as_json(found) if json else render.reconciliation(found)
    click.echo(said)
    return ExitCode.OK if found.identical else ExitCode.PROBLEM


@pgstream.command()
@click.pass_obj
@launchable(lambda of: [Request("optimize")])
@example("pgstream optimize")
def optimize(context: Context) -> None:
    """
    Rewrite the log's small files into large ones.

    One table's history then lies together. May run while the stream lands and readers read. Run it
    daily, or hourly on a busy source.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.upkeep.optimize import optimize as operation

    done = run_with_progress(lambda: operation(pipeline))
    click.echo(
        f"{done.removed_files:,} files became {done.added_files:,}"
        f" ({done.rows:,} rows, {render.size(done.bytes)})"
    )


def teardown_request(of: Pipeline, *, yes: bool) -> list[Request]:
    """No question before a run."""
    if not yes:
        raise click.UsageError(f"it drops slot {of.config.source.slot!r}: give --yes")
    return [Request("teardown")]


@pgstream.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
@launchable(teardown_request)
@example("pgstream teardown --yes")
def teardown(context: Context, *, yes: bool) -> None:
    """
    Drop the slot, and the publication that setup made.

    Nothing of ours is left on the source; a publication that you made, and the lake, stay. Stop the
    stream first. Changes from now on are not captured. To begin again later, run `pgstream setup`:
    it makes a new slot, the log says what is missing, and every table is copied.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.upkeep.teardown import teardown as operation

    if not (yes or sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask on: give --yes")
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
    """Keep search indices current, and see how far they are."""


@index_group.command("run")
@click.pass_obj
@launchable(lambda of: [Request("index")])
@example("pgstream index run")
def index_run(context: Context) -> None:
    """
    Keep every index of pgstream.yaml current until Ctrl-C or SIGTERM.

    Beside `pgstream stream`, in a process of its own: it follows the log. An alias without an index
    gets one; what a live index cannot follow is answered by a re-index. An outage of the search
    cluster is waited for.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.search.builds import Apart
    from pgstream_dagster.search.index import index as operation

    stop, line, build = threading.Event(), IndexLine(), Apart().build
    done = run_with_progress(
        lambda: operation(pipeline, stop=stop, report=line.put, build=build), stop=stop, line=line
    )
    click.echo(render.indexed(done))


@index_group.command("status")
@as_json
@click.pass_obj
@example("pgstream index status", "pgstream index status --json")
def index_status(context: Context, *, json: bool) -> None:
    """Show every alias with its generations: position, lag, documents, dead letters."""
    pipeline = context.pipeline()
    from pgstream_dagster.search.index_status import index_status as operation

    found = run_with_progress(lambda: operation(pipeline))
    click.echo(render.as_json(found) if json else render.index_status(found))


@index_group.command("compare")
@click.argument("aliases", nargs=-1)
@as_json
@click.pass_obj
@example("pgstream index compare", "pgstream index compare flights --json")
def index_compare(context: Context, aliases: tuple[str, ...], *, json: bool) -> int:
    """
    Compare the index behind each of ALIASES (all without any) with the log, document by document.

    Holds nothing up: what a change touches meanwhile is left to the next comparison. Exits with 1
    when anything differs or could not be compared.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.search.compare import compare as operation

    wanted = aliases or tuple(pipeline.config.search)
    found = run_with_progress(lambda: [operation(pipeline, alias) for alias in wanted])
    click.echo(render.as_json(found) if json else render.compared(found))
    return ExitCode.OK if all(one.identical for one in found) else ExitCode.PROBLEM


def reindex_request(of: Pipeline, alias: str, *, keep: int | None, dry_run: bool) -> list[Request]:
    """The step of one alias in the job `reindex`."""
    if dry_run:
        raise click.UsageError("--dry-run changes nothing, so there is no run to launch")
    from pgstream_dagster.assets.search import op_names

    of.config.index(alias)  # there must be one
    op = op_names(of.config.search)[alias]
    return [replace(of_op("reindex", op, keep=keep), ops=(op,))]


@pgstream.command()
@click.argument("alias")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    help="Former indices that stay for `rollback`.  [default: as pgstream.yaml says]",
)
@click.option("--dry-run", is_flag=True, help="Check everything, show the mapping, change nothing.")
@click.pass_obj
@launchable(reindex_request)
@example("pgstream reindex flights", "pgstream reindex flights --dagster")
def reindex(context: Context, alias: str, *, keep: int | None, dry_run: bool) -> int:
    """
    Build a new index from the log, then move ALIAS to it.

    The old index serves, and is kept current, until then; the new one is compared with the log,
    document by document, before the alias moves in one step.
    """
    pipeline = context.pipeline()
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


@pgstream.command()
@click.argument("alias")
@click.pass_obj
@launchable(lambda of, alias: [of_op("rollback", "move_alias_back", alias=alias)])
@example("pgstream rollback flights")
def rollback(context: Context, alias: str) -> None:
    """Move ALIAS back to the newest index that was kept."""
    pipeline = context.pipeline()
    from pgstream_dagster.search.rollback import rollback as operation

    done = run_with_progress(lambda: operation(pipeline, alias))
    click.echo(f"{done.alias} is on {done.index} again, up to {done.delivered}")


@pgstream.command()
@click.argument("alias")
@click.pass_obj
@launchable(lambda of, alias: [of_op("redrive", "send_refused_documents", alias=alias)])
@example("pgstream redrive flights")
def redrive(context: Context, alias: str) -> int:
    """
    Send the refused documents of ALIAS again.

    As their rows are now. Exits with 1 when some are refused again.
    """
    pipeline = context.pipeline()
    from pgstream_dagster.search.redrive import redrive as operation

    done = run_with_progress(lambda: operation(pipeline, alias))
    click.echo(f"{done.index}: {done.sent:,} sent again, {done.refused:,} refused again")
    return ExitCode.PROBLEM if done.refused else ExitCode.OK


@pgstream.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".demo"),
    show_default=True,
    help="Where the lake of the demo is left to look at: an empty folder, or a former demo's.",
)
@click.option("--full", "is_full", is_flag=True, help="With every flight of the year.")
@example("pgstream demo")
def demo(folder: Path, is_full: bool) -> int:
    """
    Run the whole way on real data, and compare all of it.

    With a private Postgres and OpenSearch. Needs no server and no settings; exits with 1 when
    anything differs.
    """
    from pgstream_dagster.demo.run import run

    summary = run_with_progress(lambda: run(folder, click.echo, is_full=is_full))
    click.echo("\n".join(summary.lines()))
    return ExitCode.OK if summary.identical else ExitCode.PROBLEM


@pgstream.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Where the UI listens, on 127.0.0.1.  [default: 3000, another one when that is taken]",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where lake, logs and Dagster's home stay: an empty folder, or a former one of these."
    "  [default: a temporary one]",
)
@example("pgstream dev", "pgstream dev --port 3001 --folder .dev")
def dev(*, port: int | None, folder: Path | None) -> None:
    """
    Show Dagster's UI on a live pipeline of its own.

    With a private Postgres and OpenSearch. Needs no server and no settings. Small tables, and
    writes that go on; runs until Ctrl-C or SIGTERM, then all that it started ends.
    """
    from pgstream_dagster.demo.dev import run

    stop = threading.Event()
    run_with_progress(lambda: run(folder, port, os.environ, stop=stop, say=click.echo), stop=stop)


class Plain(logging.Formatter):
    """Every line begins with its level."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return f"{record.levelname.lower()}: {super().format(record)}"


def log_to_stderr(*, verbose: bool) -> None:
    """Our own lines from INFO on, other packages' from WARNING on; stdout is for results."""
    handler = logging.StreamHandler()
    handler.setFormatter(Plain())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("pgstream_dagster").setLevel(logging.DEBUG if verbose else logging.INFO)


def copy(operation: Callable[..., Sequence[Copied]], next_step: str | None = None) -> None:
    """Run an operation that copies tables; print what it copied, and the next step if any."""
    line, began_at = CopyLine(), time.monotonic()
    copied = run_cancellable(lambda stop: operation(on_progress=line.put, stop=stop), line)
    click.echo(render.copies(copied, time.monotonic() - began_at, next_step))


def run_with_progress(
    operation: Callable[[], T],
    *,
    stop: threading.Event | None = None,
    line: Callable[[], str | None] = lambda: None,
) -> T:
    """Run an operation with progress on stderr; signals ask it to stop, or end the command."""
    from pgstream_dagster.threads import run_in_thread

    with heard(stop), Progress(line) as progress:
        return run_in_thread(operation, stop=stop, look=progress.look, patience_seconds=0)


def run_cancellable(
    operation: Callable[[Stop], T], line: Callable[[], str | None] = lambda: None
) -> T:
    """The same; a signal cancels what the operation waits for, and ends the command."""
    from pgstream_dagster import threads

    with heard(None), Progress(line) as progress:
        return threads.run_cancellable(operation, look=progress.look)
