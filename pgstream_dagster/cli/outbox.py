"""The commands of the transactional outbox on the source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pgstream_dagster.cli import commands, render
from pgstream_dagster.cli.exits import ExitCode

if TYPE_CHECKING:
    from pgstream_dagster.outbox.importer import Imported
    from pgstream_dagster.outbox.install import Installed
    from pgstream_dagster.outbox.maintain import Maintained
    from pgstream_dagster.pipeline import Pipeline
    from pgstream_dagster.source.connect import Session

T = TypeVar("T")


@commands.pgstream.group("outbox")
@commands.example("pgstream outbox install")
def outbox_group() -> None:
    """Keep subscriptions and events on the source."""


@outbox_group.group("subscriptions")
@commands.example("pgstream outbox subscriptions import subscriptions.json")
def subscriptions_group() -> None:
    """Bring subscriptions from elsewhere."""


@commands.command("pgstream outbox install", group=outbox_group, name="install")
@commands.as_json
def outbox_install(pipeline: Pipeline, *, json: bool) -> None:
    """
    Create schema pgstream with subscriptions, streams and events.

    Run it as the role that owns the tables to subscribe. An outbox that is there stays as it is. A
    superuser's gets event triggers, by which subscriptions follow when tables are renamed.
    """
    from pgstream_dagster.outbox.install import install
    from pgstream_dagster.outbox.maintain import maintain
    from pgstream_dagster.outbox.owner import outbox_config

    config = outbox_config(pipeline)

    def operation(session: Session) -> Installed:
        done = install(session)
        maintain(session, config)
        return done

    done = with_session(pipeline, operation)
    click.echo(render.as_json(done) if json else installed_text(done))


@commands.command("pgstream outbox upgrade", group=outbox_group, name="upgrade")
@commands.as_json
def outbox_upgrade(pipeline: Pipeline, *, json: bool) -> None:
    """Bring an outbox to this version; repair triggers that are missing or differ."""
    from pgstream_dagster.outbox.install import upgrade

    done = with_session(pipeline, upgrade)
    click.echo(render.as_json(done) if json else installed_text(done))


@commands.command("pgstream outbox uninstall --yes", group=outbox_group, name="uninstall")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@commands.as_json
def outbox_uninstall(pipeline: Pipeline, *, yes: bool, json: bool) -> None:
    """
    Remove the outbox with all subscriptions, triggers and events.

    Events that no sink has delivered are lost. The schema goes too, unless something else is in it.
    """
    from pgstream_dagster.outbox.install import uninstall

    if not (yes or sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to confirm on: give --yes")
    if not yes:
        click.confirm("remove the outbox with all its events?", abort=True, err=True)
    is_removed = with_session(pipeline, uninstall)
    text = "the outbox is removed" if is_removed else "there was no outbox"
    click.echo(render.as_json({"removed": is_removed}) if json else text)


@commands.command(
    "pgstream outbox check", "pgstream outbox check --json", group=outbox_group, name="check"
)
@commands.as_json
def outbox_check(pipeline: Pipeline, *, json: bool) -> int:
    """
    Check the outbox: version, subscriptions, triggers, partitions; change nothing.

    Each finding has the statement that repairs it. Exits with 1 if any finding is an error.
    """
    from pgstream_dagster.outbox.check import check
    from pgstream_dagster.outbox.owner import outbox_config
    from pgstream_dagster.source.preflight import Severity

    config = outbox_config(pipeline)
    findings = with_session(
        pipeline,
        lambda session: check(session, days_ahead=config.days_ahead, keep_days=config.keep_days),
    )
    lines = [f"{finding.severity}: {finding}" for finding in findings] or ["no problem"]
    click.echo(render.as_json(findings) if json else "\n".join(lines))
    has_errors = any(finding.severity is Severity.ERROR for finding in findings)
    return ExitCode.PROBLEM if has_errors else ExitCode.OK


@commands.command(
    *("pgstream outbox maintain", "pgstream outbox maintain --force"),
    group=outbox_group,
    name="maintain",
)
@click.option("--force", is_flag=True, help="Drop old days that a sink has not delivered, too.")
@commands.as_json
def outbox_maintain(pipeline: Pipeline, *, force: bool, json: bool) -> int:
    """
    Make the partitions of the days ahead; drop the days that are old and delivered.

    Run it hourly or daily. Writers of the application wait for milliseconds at most. Exits with 1
    if there is an alert, or something is left to the next run.
    """
    from pgstream_dagster.upkeep.maintain_outbox import maintain_outbox

    done = commands.run_with_progress(lambda: maintain_outbox(pipeline, force=force))
    click.echo(render.as_json(done) if json else maintained_text(done))
    return ExitCode.PROBLEM if done.alerts or done.postponed else ExitCode.OK


@commands.command(
    "pgstream outbox subscriptions import subscriptions.json",
    "pgstream outbox subscriptions import --dsn-variable OLD_DSN",
    group=subscriptions_group,
    name="import",
)
@click.argument(
    "source", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False)
)
@click.option(
    "--dsn-variable",
    help="Environment variable with the connection string of the database that has them.",
)
@commands.as_json
def subscriptions_import(
    pipeline: Pipeline, source: Path | None, *, dsn_variable: str | None, json: bool
) -> int:
    """
    Import the subscriptions of postgres-stream, from FILE or from its database.

    FILE is a JSON array of the rows, or CSV with a header. Without either they are read from the
    source. They keep their ids. Exits with 1 if one is refused, and says why.
    """
    from pgstream_dagster.outbox.importer import (
        from_database,
        from_file,
        import_subscriptions,
    )

    if source is not None and dsn_variable is not None:
        raise click.UsageError("give a file or --dsn-variable, not both")

    def operation(session: Session) -> Imported:
        dsn = pipeline.environment.get(dsn_variable, "") if dsn_variable else pipeline.dsn
        rows = from_database(dsn) if source is None else from_file(source)
        return import_subscriptions(session, rows)

    done = with_session(pipeline, operation)
    click.echo(render.as_json(done) if json else imported_text(done))
    return ExitCode.PROBLEM if done.refused else ExitCode.OK


def with_session(pipeline: Pipeline, operation: Callable[[Session], T]) -> T:
    """Run an operation on a session of the role that owns the outbox."""
    from pgstream_dagster.outbox.owner import owner_session

    def run() -> T:
        with owner_session(pipeline) as session:
            return operation(session)

    return commands.run_with_progress(run)


def installed_text(done: Installed) -> str:
    """The result of `install` and `upgrade`, for people."""
    before = "" if done.former_version is None else f", which was {done.former_version} before"
    lines = [f"the outbox has version {done.version}{before}"]
    if not done.has_event_triggers:
        lines.append(
            "without event triggers, which need a superuser: after a table or column is renamed or"
            " dropped, run 'pgstream outbox check'"
        )
    return "\n".join(lines)


def maintained_text(done: Maintained) -> str:
    """The result of `maintain`, for people."""
    facts = [
        ("created", ", ".join(map(str, done.created))),
        ("moved rows", f"{done.moved_rows:,}" if done.moved_rows else ""),
        ("dropped", ", ".join(map(str, done.dropped))),
        *(("left to the next run", text) for text in done.postponed),
        *(("alert", text) for text in done.alerts),
    ]
    return "\n".join(f"{name}: {text}" for name, text in facts if text) or "nothing to do"


def imported_text(done: Imported) -> str:
    """The result of `subscriptions import`, for people."""
    lines = [f"{done.imported} imported, {done.existing} were there, {len(done.refused)} refused"]
    lines += [
        f"refused: {refused.key!r} ({refused.operation} of {refused.table}): {refused.reason}"
        for refused in done.refused
    ]
    return "\n".join(lines)
