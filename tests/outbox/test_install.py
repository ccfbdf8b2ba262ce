"""Install, upgrade, uninstall: once, twice, at the same time, and without a superuser."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.errors import (
    AccessRefused,
    OutboxMissing,
    OutboxNewer,
    OutboxOccupied,
    OutboxOutdated,
)
from pgstream_dagster.outbox import install as module
from pgstream_dagster.outbox.check import check
from pgstream_dagster.outbox.install import VERSION, Installed, install, uninstall, upgrade
from pgstream_dagster.outbox.maintain import maintain
from pgstream_dagster.source import query
from pgstream_dagster.source.connect import connect
from tests.support.plugins.cluster import psql

OBJECTS = (
    "select 'class', relname from pg_class where relnamespace = to_regnamespace('pgstream')"
    " union all select 'function', proname from pg_proc"
    " where pronamespace = to_regnamespace('pgstream')"
    " union all select 'type', typname from pg_type where typnamespace ="
    " to_regnamespace('pgstream')"
    " union all select 'schema', nspname from pg_namespace where nspname = 'pgstream'"
    " union all select 'event', evtname from pg_event_trigger"
    " union all select 'trigger', tgname from pg_trigger where not tgisinternal"
    " order by 1, 2"
)

SUBSCRIBE = (
    "insert into pgstream.streams (id) values (1)",
    "create table if not exists t (id int)",
    (
        "insert into pgstream.subscriptions (key, stream_id, operation, schema_name, table_name)"
        " values ('k', 1, 'INSERT', 'public', 't')"
    ),
)


def done(dsn: str, operation: Any, **settings: Any) -> Any:
    with closing(connect(dsn)) as session:
        return operation(session, **settings)


def test_install_twice_changes_nothing(dsn) -> None:
    assert done(dsn, install) == Installed(VERSION, None, has_event_triggers=True)
    psql(dsn, *SUBSCRIBE)
    before = psql(dsn, OBJECTS)
    assert done(dsn, install) == Installed(VERSION, VERSION, has_event_triggers=True)
    assert psql(dsn, OBJECTS) == before


def test_install_at_the_same_time_succeeds_once(dsn) -> None:
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: done(dsn, install).former_version, range(3)))
    assert sorted(results, key=str) == [VERSION, VERSION, None]


def test_uninstall_leaves_nothing(dsn) -> None:
    """P78."""
    before = psql(dsn, OBJECTS)
    done(dsn, install)
    psql(dsn, *SUBSCRIBE)
    done(dsn, maintain)
    assert done(dsn, uninstall)
    assert psql(dsn, OBJECTS) == before
    assert not done(dsn, uninstall)
    psql(dsn, "insert into t values (1)")
    with pytest.raises(OutboxMissing, match="outbox install"):
        done(dsn, maintain)
    [finding] = done(dsn, check)
    assert "no outbox" in finding.fact
    assert "pgstream outbox install" in finding.remedy


def test_uninstall_keeps_what_others_have_in_the_schema(dsn) -> None:
    psql(dsn, "create schema pgstream", "create table pgstream.webhook_subscriptions (url text)")
    before = psql(dsn, OBJECTS)
    done(dsn, install)
    assert done(dsn, uninstall)
    assert psql(dsn, OBJECTS) == before


def test_uninstall_waits_for_no_open_transaction_and_removes_nothing_then(dsn) -> None:
    done(dsn, install)
    psql(dsn, *SUBSCRIBE)
    before = psql(dsn, OBJECTS)
    with psycopg.connect(dsn) as application:
        application.execute("insert into t values (1)")
        with closing(connect(dsn)) as session:
            session.execute("set pgstream.lock_timeout = '100ms'")
            with pytest.raises(Exception, match="was not free"):
                uninstall(session)
    assert psql(dsn, OBJECTS) == before


def test_upgrade_replaces_older_bodies_and_repairs_what_is_generated(dsn, monkeypatch) -> None:
    done(dsn, install)
    psql(dsn, *SUBSCRIBE)
    [(body,)] = psql(dsn, "select prosrc from pg_proc where proname = 'deep_merge'")
    [(name,)] = psql(dsn, "select proname from pg_proc where proname ~ '^capture_[0-9]'")
    older = "create or replace function pgstream.{}() returns trigger language plpgsql as"
    psql(
        dsn,
        "update pgstream.outbox_version set version = 0",
        "create or replace function pgstream.deep_merge(base jsonb, addition jsonb) returns jsonb"
        " language sql immutable as 'select base'",
        older.format(name) + " 'begin return null; end'",
        "alter table pgstream.streams drop column name",
    )
    with pytest.raises(OutboxOutdated, match="outbox upgrade"):
        done(dsn, install)
    with pytest.raises(OutboxOutdated):
        done(dsn, maintain)
    [finding] = done(dsn, check)
    assert "outbox upgrade" in finding.remedy

    monkeypatch.setattr(module, "UPGRADES", {1: ("streams_name",), 3: ("never",)})
    statements = {"outbox/streams_name": "alter table pgstream.streams add column name text"}
    files = query.statement
    monkeypatch.setattr(query, "statement", lambda name: statements.get(name) or files(name))
    assert done(dsn, upgrade) == Installed(VERSION, 0, has_event_triggers=True)
    assert psql(dsn, "select prosrc from pg_proc where proname = 'deep_merge'") == [(body,)]
    psql(dsn, "insert into t values (1)")
    assert psql(dsn, "select count(*) from pgstream.events") == [(1,)]
    assert psql(dsn, "select name from pgstream.streams") == [(None,)]


def test_upgrade_from_version_1(dsn) -> None:
    done(dsn, install)
    psql(dsn, *SUBSCRIBE)
    [(name,)] = psql(dsn, "select tgname from pg_trigger where tgname ~ '^pgstream_'")
    psql(
        dsn,
        "update pgstream.outbox_version set version = 1",
        "alter table pgstream.outbox_version drop column home",
        "create function pgstream.cannot_fail(given pgstream.subscriptions) returns boolean"
        " return true",
        f"alter trigger {name} on t rename to pgstream_insert_deferred",
        "alter table pgstream.outbox_sinks drop log_id, drop generation, drop delivered_before,"
        " drop pending_snapshot, drop pending_lsn",
        "insert into pgstream.outbox_sinks values ('shop', 'out', 1, '0/5', now())",
    )
    assert done(dsn, upgrade) == Installed(VERSION, 1, has_event_triggers=True)
    assert psql(dsn, "select tgname from pg_trigger where tgname ~ '^pgstream_'") == [
        ("pgstream_insert_deferred",)  # a new name is no reason to wait for writers
    ]
    psql(dsn, "insert into t values (1)")
    assert psql(dsn, "select count(*) from pgstream.events") == [(1,)]
    done(dsn, maintain)
    assert psql(dsn, "select sink, delivered_lsn::text from pgstream.outbox_sinks") == [
        ("out", "0/5")
    ]
    assert done(dsn, uninstall)
    assert psql(dsn, "select from pg_namespace where nspname = 'pgstream'") == []


def test_outbox_of_a_newer_pgstream_is_left_alone(dsn) -> None:
    done(dsn, install)
    psql(dsn, "update pgstream.outbox_version set version = 99")
    for operation in (install, upgrade, maintain):
        with pytest.raises(OutboxNewer, match="upgrade pgstream"):
            done(dsn, operation)
    psql(dsn, "drop schema pgstream cascade")
    with pytest.raises(OutboxMissing):
        done(dsn, upgrade)


@pytest.fixture
def roles(dsn) -> Iterator[tuple[str, str]]:
    """Connection strings of the owner of the tables, no superuser, and of a runtime role."""
    suffix = psql(dsn, "select current_database()")[0][0]
    owner, runtime = f"owner_{suffix}", f"runtime_{suffix}"
    psql(
        dsn,
        f"create role {owner} login",
        f"create role {runtime} login",
        f"grant create on database {suffix} to {owner}",
        f"create schema app authorization {owner}",
        f"grant usage on schema app to {runtime}",
    )
    yield make_conninfo(dsn, user=owner), make_conninfo(dsn, user=runtime)
    for role in (owner, runtime):
        psql(dsn, f"drop owned by {role} cascade", f"drop role {role}")


def test_owner_of_the_tables_installs_and_runs_it_without_superuser(dsn, roles) -> None:
    """P76."""
    owner, runtime = roles
    runtime_role = runtime.partition("user=")[2].split()[0]
    assert done(owner, install) == Installed(VERSION, None, has_event_triggers=False)
    psql(
        owner,
        "create table app.orders (id int)",
        f"grant insert on app.orders to {runtime_role}",
        "insert into pgstream.streams (id) values (1)",
        "select pgstream.set_subscriptions(1, array[pgstream.subscription("
        "key => 'k', operation => 'INSERT', schema_name => 'app', table_name => 'orders')])",
    )
    done(owner, maintain)
    psql(runtime, "insert into app.orders values (1)")
    assert psql(owner, "select payload -> 'new' from pgstream.events") == [({"id": 1},)]
    for right in ("TRIGGER", "SELECT"):
        query = f"select has_table_privilege('{runtime_role}', 'app.orders', '{right}')"
        assert psql(dsn, query) == [(False,)]
    assert "event_triggers" in {finding.check for finding in done(owner, check)}
    psql(dsn, "create table app.foreign_table (id int)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="does not own") as raised:
        psql(
            owner,
            "insert into pgstream.subscriptions (key, stream_id, operation, schema_name,"
            " table_name) values ('k', 1, 'INSERT', 'app', 'foreign_table')",
        )
    assert "grant postgres to owner_" in raised.value.diag.message_hint
    with pytest.raises(AccessRefused):
        done(runtime, maintain)
    assert done(owner, upgrade).has_event_triggers is False
    assert done(owner, uninstall)


def test_schema_of_another_role_is_refused_to_a_superuser_too(dsn, roles) -> None:
    """Its owner could replace functions that run with the rights of the outbox."""
    owner = roles[0].partition("user=")[2].split()[0]
    psql(dsn, f"create schema pgstream authorization {owner}")
    with pytest.raises(AccessRefused, match=f"belongs to role '{owner}'"):
        done(dsn, install)
    done(roles[0], install)
    with pytest.raises(AccessRefused, match=f"belongs to role '{owner}'"):
        done(dsn, upgrade)


def test_outbox_of_a_superuser_takes_no_table_of_others(dsn, roles) -> None:
    """Casts of the table's owner would run as a superuser."""
    psql(roles[0], "create table app.orders (id int)")
    done(dsn, install)
    psql(dsn, "insert into pgstream.streams (id) values (1)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="belongs to") as raised:
        psql(
            dsn,
            "insert into pgstream.subscriptions (key, stream_id, operation, schema_name,"
            " table_name) values ('k', 1, 'INSERT', 'app', 'orders')",
        )
    assert raised.value.diag.message_hint == "Install the outbox as the owner of the tables."


def test_role_that_may_create_no_schema_is_told_the_grant(roles) -> None:
    with pytest.raises(AccessRefused, match="grant create on database"):
        done(roles[1], install)


def test_tables_of_postgres_stream_are_not_touched(dsn) -> None:
    """P77: the start is refused, with what to do."""
    psql(
        dsn,
        "create schema pgstream",
        "create table pgstream.subscriptions (id uuid primary key, key text)",
    )
    before = psql(dsn, OBJECTS)
    with pytest.raises(OutboxOccupied, match="coming-from-postgres-stream"):
        done(dsn, install)
    assert psql(dsn, OBJECTS) == before


def test_every_function_that_acts_as_the_owner_has_a_safe_path(dsn) -> None:
    done(dsn, install)
    psql(dsn, *SUBSCRIBE)
    unsafe = psql(
        dsn,
        "select proname from pg_proc where pronamespace = 'pgstream'::regnamespace and prosecdef"
        " and not 'search_path=pg_catalog, pg_temp' = any (proconfig)",
    )
    assert unsafe == []
    public = psql(
        dsn,
        "select proname from pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) as a"
        " where pronamespace = 'pgstream'::regnamespace and a.grantee = 0 order by 1",
    )
    assert public == [("deep_merge",), ("uuid_v7",)]
