"""The first hour with a database whose tables another role owns: check, grants, a pipeline."""

from __future__ import annotations

import json

import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.delta import jvm
from tests.support.plugins.cluster import psql


@pytest.fixture
def role(shell):
    """A role that owns nothing and has no right but LOGIN; the shell uses it."""
    name = f"capture_{psql(shell.dsn, 'select current_database()')[0][0]}"
    owner = f"app_{name}"
    psql(
        shell.dsn,
        f"create role {name} login",
        f"create role {owner}",
        f"create schema app authorization {owner}",
        f"alter table orders owner to {owner}",
        "create table app.lines (id int primary key, day int) partition by range (id)",
        "create table app.lines_1 partition of app.lines for values from (0) to (1000)",
        "insert into app.lines select i, i from generate_series(1, 50) i",
        'create table app."Odd name" (id int primary key)',
        "create table app.keyless (x int)",
        "insert into app.keyless values (1)",
        "create table app.secret (id int primary key, x text)",
        "alter table app.secret enable row level security",
        "insert into app.secret values (1, 'x')",
        *(f"alter table app.{t} owner to {owner}" for t in ("lines", '"Odd name"', "keyless")),
    )
    (shell.folder / "pgstream.yaml").write_text(
        f"pipeline: shop\nsource: {{slot: {shell.slot}, tables: all, exclude: [visits]}}\n"
    )
    ours = make_conninfo(shell.dsn, user=name)
    (shell.folder / ".env").write_text(f"PGSTREAM_DSN={ours}\nPGSTREAM_LAKE=./lake\n")
    yield name
    psql(
        shell.dsn,
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
        f" where slot_name = '{shell.slot}'",
        "drop publication if exists pgstream_shop",
        *(f"drop owned by {who} cascade" for who in (name, owner)),
        *(f"drop role {who}" for who in (name, owner)),
    )


def errors(findings):
    return [finding for finding in findings if finding["severity"] == "error"]


@pytest.mark.long
def test_script_of_grants_is_all_that_a_role_which_owns_nothing_needs(shell, role, spark):
    script = shell.pgstream("grants")
    assert "-- without replica identity, so left out: app.keyless" in script
    psql(shell.dsn, script)
    findings = shell.json("check")
    assert errors(findings) == []
    (left_out,) = [finding for finding in findings if finding["check"] == "replica_identity"]
    assert "'app.keyless'" in left_out["fact"]

    copied = shell.pgstream("setup")
    assert all(name in copied for name in ("app.lines", 'app."Odd name"', "public.orders"))
    psql(
        shell.dsn,
        "update orders set note = 'new' where id = 1",
        "delete from app.lines where id = 7",
        "update app.secret set x = 'y'",
        "update app.keyless set x = 2",
    )
    assert "landed 3 changes" in shell.pgstream("stream", "--drain")
    with shell.streaming():
        compared = shell.json("reconcile", "--timeout", "200")
    assert compared["identical"] is True
    assert {table["table"] for table in compared["tables"]} == {
        *('app."Odd name"', "app.lines", "app.secret", "public.orders")
    }
    assert shell.pgstream("grants").count("publication") == 1  # nothing is missing in it

    printed = shell.pgstream("teardown", "--yes")
    assert f"slot '{shell.slot}' dropped" in printed
    assert "drop publication" in printed
    after = [line.removeprefix("--   ") for line in script.splitlines() if "--   drop" in line]
    psql(shell.dsn, *after)
    assert psql(shell.dsn, f"select 1 from pg_roles where rolname = '{role}'") == []
    psql(shell.dsn, f"create role {role}")  # for the end of the fixture


def test_every_problem_of_a_bare_role_is_one_finding_with_its_statement(shell, role):
    psql(shell.dsn, f"alter role {role} replication")
    found_errors = errors(shell.json("check", code=1))
    assert sorted(error["check"] for error in found_errors) == [
        *("owner", "row_security", "select_right")
    ]
    for error in found_errors:
        psql(shell.dsn, error["remedy"].partition("run ")[2])
    assert errors(shell.json("check")) == []


def test_check_changes_nothing_and_prints_the_next_step(shell):
    printed = shell.pgstream("check")
    assert printed.rstrip().endswith("next: pgstream setup")
    assert psql(shell.dsn, "select 1 from pg_publication") == []
    assert shell.confirmed() is None
    assert sorted(path.name for path in shell.folder.iterdir()) == [".env", "pgstream.yaml"]


def test_check_reports_a_slot_that_is_not_ours(shell):
    psql(shell.dsn, f"select pg_create_logical_replication_slot('{shell.slot}', 'pgoutput')")
    (finding,) = errors(shell.json("check", code=1))
    assert finding["check"] == "slot_name"
    assert f"slot '{shell.slot}' is not ours" in finding["fact"]


def test_check_reports_every_problem_at_once(shell, monkeypatch):
    (shell.folder / "pgstream.yaml").write_text(
        "pipeline: shop\nsearch: {orders: {table: orders}}\n"
    )
    blocked = shell.folder / "file"
    blocked.write_text("")
    shell.set(DSN=make_conninfo(shell.dsn, dbname="none_such"), LAKE=str(blocked / "lake"))
    monkeypatch.setenv("PGSTREAM_SEARCH_URL", "http://127.0.0.1:1")
    findings = shell.json("check", code=1)
    assert [finding["check"] for finding in findings] == ["connection", "lake", "search"]
    assert "is no folder" in findings[1]["fact"]


@pytest.mark.parametrize("engine", ["opensearch", "elasticsearch"])
def test_role_for_the_search_cluster_names_our_indices_alone(shell, engine):
    (shell.folder / "pgstream.yaml").write_text(
        "pipeline: shop\nsearch: {orders: {table: orders}}\n"
    )
    first, _, body = shell.pgstream("grants", "--search", engine).partition("\n")
    assert first.startswith("PUT _")
    ours = json.dumps(["pgstream-control", "orders", "orders-*", "orders.*", "pgstream-schema-log"])
    assert ours in json.dumps(json.loads(body))


@pytest.fixture
def no_jvm(monkeypatch):
    """Starting a JVM fails now."""

    def gateway(settings):
        pytest.fail("a JVM was started")

    monkeypatch.setattr(jvm, "gateway", gateway)


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        ({"dbname": "nope"}, "; check dbname in PGSTREAM_DSN"),
        ({"user": "nobody_here"}, "; check the user and password in PGSTREAM_DSN"),
    ],
)
def test_wrong_address_is_reported_at_once_and_leaves_nothing_behind(
    shell, no_jvm, changed, remedy
):
    shell.set(DSN=make_conninfo(shell.dsn, **changed))
    shell.pgstream("setup", code=3)
    assert remedy in shell.errors
    assert sorted(path.name for path in shell.folder.iterdir()) == [".env", "pgstream.yaml"]


def test_source_that_is_not_ready_leaves_nothing_behind(shell, no_jvm):
    psql(shell.dsn, "alter table orders drop constraint orders_pkey, alter id drop not null")
    psql(shell.dsn, "alter table visits replica identity default")
    shell.pgstream("setup", code=3)
    assert "'public.orders' has no replica identity" in shell.errors
    assert sorted(path.name for path in shell.folder.iterdir()) == [".env", "pgstream.yaml"]


@pytest.mark.parametrize(
    "command",
    [
        *("stream", "optimize", "resnapshot", "reconcile", "snapshot public.orders"),
        *("index run", "index status", "index compare orders", "reindex orders"),
        *("rollback orders", "redrive orders"),
    ],
)
def test_command_before_setup_is_refused_without_a_jvm(shell, monkeypatch, no_jvm, command):
    (shell.folder / "pgstream.yaml").write_text(
        "pipeline: shop\nsearch: {orders: {table: orders}}\n"
    )
    monkeypatch.setenv("PGSTREAM_SEARCH_URL", "http://127.0.0.1:1")
    shell.pgstream(*command.split(), code=3)
    assert "is not set up in the lake './lake'; run 'pgstream setup'" in shell.errors


@pytest.mark.parametrize("command", ["reindex", "index compare", "rollback", "redrive"])
def test_alias_that_the_file_does_not_have_is_reported_without_a_jvm(shell, no_jvm, command):
    shell.pgstream(*command.split(), "nope", code=3)
    assert "nope" in shell.errors


@pytest.mark.long
def test_every_line_that_setup_logs_has_a_level_of_ours(shell):
    """Spark and its JVM print nothing when they start."""
    started = shell.start("setup")
    printed, logged = started.communicate(timeout=300)
    assert started.returncode == 0, logged
    assert printed.endswith("next: pgstream stream\n")
    lines = logged.splitlines()
    assert any(line.startswith("info: copying 2 tables from one snapshot") for line in lines)
    progress = ("copied ", "waiting: ")
    asked_for = "NOTE: Picked up JDK_JAVA_OPTIONS"  # Java's, where that variable is set
    expected = ("info: ", "warning: ", *progress, asked_for)
    assert [line for line in lines if not line.startswith(expected)] == []
