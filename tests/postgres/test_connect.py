"""Connections: the text is pinned whatever the role, database or environment say; errors named."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.errors import (
    AccessRefused,
    ConnectionLost,
    InvalidDsn,
    LocksHeld,
    QueryCancelled,
    ReadOnlyServer,
    Retry,
    SourceError,
    SourceExhausted,
    Unreachable,
)
from pgstream_dagster.source.connect import (
    PINNED,
    PINNED_FROM,
    command,
    connect,
    named_errors,
    replication,
    server,
)
from pgstream_dagster.sql import statement
from tests.support.plugins.cluster import OwnServer, psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.every_major

ODD = {
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-3",
    "bytea_output": "escape",
    "xmlbinary": "hex",
    "search_path": "public",
    "row_security": "on",
    "statement_timeout": "1s",
    "idle_in_transaction_session_timeout": "1s",
    "default_transaction_read_only": "on",
}
SAMPLE = (
    "select '2024-02-29 12:00+00'::timestamptz::text a, '1 day'::interval::text b,"
    " 0.1::float8::text c, '\\xff'::bytea::text d, 'public.t'::regclass::text e,"
    " 12.5::money::text f"
)


def _walsender(dsn: str, query: str) -> list[dict[str, str | None]]:
    pgconn = replication(dsn)
    try:
        return command(pgconn, query)
    finally:
        pgconn.finish()


def test_both_kinds_of_session_print_the_same_text_whatever_else_is_set(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((database,),) = psql(dsn, "create table public.t ()", "select current_database()")
    psql(dsn, *(f"alter database {database} set {name} = '{value}'" for name, value in ODD.items()))
    monkeypatch.setenv("PGTZ", "America/St_Johns")
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    monkeypatch.setenv("PGOPTIONS", "-c bytea_output=escape -c statement_timeout=5s")
    with connect(dsn) as connection:
        (row,) = connection.execute(SAMPLE).fetchall()
        settings = {
            name: connection.execute("select current_setting(%s)", [name]).fetchall()[0][0]
            for name in PINNED
        }
    assert row == ("2024-02-29 12:00:00+00", "1 day", "0.1", "\\xff", "public.t", "$12.50")
    assert tuple(_walsender(dsn, SAMPLE)[0].values()) == row
    assert {n: v.replace(" ", "") for n, v in settings.items()} == {
        n: v.replace(" ", "") for n, v in PINNED.items()
    }
    for name in PINNED:
        assert _walsender(dsn, f"show {name}")[0].popitem()[1] == settings[name]


@pytest.mark.majors(since=17)
def test_a_login_trigger_changes_no_text(dsn: str) -> None:
    psql(dsn, "create table public.t ()")
    late = {**ODD, "transaction_timeout": "1s", "client_encoding": "LATIN1"}
    odd = "; ".join(f"perform pg_catalog.set_config('{n}', '{v}', false)" for n, v in late.items())
    with connect(dsn) as connection:
        names = [*PINNED, *PINNED_FROM, "client_encoding"]
        expected = {name: connection.execute(f"show {name}").fetchall()[0][0] for name in names}
        (row,) = connection.execute(SAMPLE).fetchall()
    psql(
        dsn,
        # Hides the built-in one from who trusts search_path.
        "create function public.set_config(text, text, bool) returns text return null",
        f"create function odd() returns event_trigger language plpgsql as $$begin {odd}; end$$",
        "create event trigger odd on login execute function odd()",
    )
    with psycopg.connect(dsn) as affected:
        assert affected.execute("show bytea_output").fetchall() == [("escape",)]
    with connect(dsn) as connection:
        assert connection.execute(SAMPLE).fetchall() == [row]
        assert {n: connection.execute(f"show {n}").fetchall()[0][0] for n in names} == expected
    assert tuple(_walsender(dsn, SAMPLE)[0].values()) == row
    assert {n: _walsender(dsn, f"show {n}")[0].popitem()[1] for n in names} == expected


def test_options_of_the_user_stay_where_they_are_not_pinned(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=77MB")
    with connect(dsn) as connection:
        assert connection.execute("show work_mem").fetchall() == [("77MB",)]
    with connect(make_conninfo(dsn, options="-c work_mem=78MB")) as connection:
        assert connection.execute("show work_mem").fetchall() == [("78MB",)]


@pytest.mark.majors(since=17)  # transaction_timeout
def test_a_long_transaction_is_not_ended_by_a_timeout_of_the_server(dsn: str) -> None:
    with connect(dsn) as connection:
        ((database,),) = connection.execute("select current_database()").fetchall()
    psql(dsn, f"alter database {database} set transaction_timeout = '1s'")
    with connect(dsn) as connection:
        assert connection.execute("show transaction_timeout").fetchall() == [("0",)]
    assert _walsender(dsn, "show transaction_timeout") == [{"transaction_timeout": "0"}]


def test_application_name_is_seen_by_the_server(dsn: str) -> None:
    with connect(dsn, application_name="pgstream of shop") as connection:
        assert connection.execute("show application_name").fetchall() == [("pgstream of shop",)]


@pytest.mark.parametrize("opened", [connect, replication])
def test_a_role_that_does_not_exist_is_refused(dsn: str, opened: object) -> None:
    assert callable(opened)
    with pytest.raises(AccessRefused, match=r'refused: role "nobody_here" .*; check the user'):
        opened(make_conninfo(dsn, user="nobody_here"))


@pytest.mark.parametrize("opened", [connect, replication])
def test_a_database_that_does_not_exist_is_refused(dsn: str, opened: object) -> None:
    assert callable(opened)
    with pytest.raises(AccessRefused, match=r'refused: database "nope" .*; check dbname'):
        opened(make_conninfo(dsn, dbname="nope"))


@pytest.mark.parametrize("opened", [connect, replication])
def test_a_port_no_process_listens_on_is_unreachable(opened: object) -> None:
    assert callable(opened)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(Unreachable, match=f"cannot reach 127.0.0.1:{port}/shop: .*refused"):
            opened(f"host=127.0.0.1 port={port} dbname=shop password=secret")


def test_a_server_without_free_connections_is_worth_another_try(own_postgres: OwnServer) -> None:
    psql(own_postgres.dsn, "create role app login", "alter role app connection limit 0")
    with pytest.raises(Unreachable, match="too many connections for role"):
        connect(make_conninfo(own_postgres.dsn, user="app"))


def test_a_server_without_free_walsenders_is_worth_another_try(own_postgres: OwnServer) -> None:
    psql(own_postgres.dsn, "alter system set max_wal_senders = 1")
    own_postgres.stop()
    own_postgres.start()
    only = replication(own_postgres.dsn)
    with pytest.raises(Unreachable, match="max_wal_senders"):
        replication(own_postgres.dsn)
    only.finish()


def test_a_server_that_restarts_is_unreachable_and_never_a_refusal(own_postgres: OwnServer) -> None:
    own_postgres.stop()
    with pytest.raises(Unreachable):
        connect(own_postgres.dsn)
    own_postgres.start()
    with connect(own_postgres.dsn) as connection:
        assert connection.execute("select 1").fetchall() == [(1,)]


def test_a_position_is_passed_without_waiting_for_a_standby(own_postgres: OwnServer) -> None:
    dsn, reload = own_postgres.dsn, "select pg_reload_conf()"
    psql(dsn, "alter system set synchronous_standby_names = 'absent'", reload)
    until(lambda: psql(dsn, "show synchronous_standby_names") == [("absent",)])

    def pass_position() -> None:
        with connect(dsn) as connection:
            connection.execute(statement("source/pass_position"))

    passing = threading.Thread(target=pass_position)
    passing.start()
    try:
        until(lambda: not passing.is_alive(), seconds=20)
    finally:
        psql(dsn, "alter system reset synchronous_standby_names", reload)  # ends the wait
        passing.join()


@pytest.mark.parametrize(
    "text", ["secretpassword", "password=a secret=b", "postgresql://u:se%cret@host/db"]
)
def test_a_string_that_is_none_is_not_repeated(text: str) -> None:
    with pytest.raises(InvalidDsn) as caught:
        connect(text)
    shown = f"{caught.value!r} {caught.value} {caught.value.__cause__}"
    assert "secret" not in shown
    assert "se%cret" not in shown


@pytest.mark.parametrize("opened", [connect, replication])
def test_a_server_that_never_answers_is_unreachable_and_stops_no_other_thread(
    opened: Callable[[str], object],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        port = silent.getsockname()[1]
        attempt = pool.submit(opened, f"host=127.0.0.1 port={port} user=u connect_timeout=2")
        pauses, last = [], time.monotonic()
        while not attempt.done():
            time.sleep(0.01)
            last, before = time.monotonic(), last
            pauses.append(last - before)
        with pytest.raises(Unreachable):
            attempt.result()
    assert len(pauses) > 20
    assert max(pauses) < 1.5


def test_a_cluster_without_a_primary_is_waited_for(dsn: str) -> None:
    """In a failover every host may be a standby; here one that must be a standby is a primary."""
    with pytest.raises(Unreachable) as caught:
        connect(make_conninfo(dsn, target_session_attrs="standby"))
    assert caught.value.retry is Retry.LATER
    with pytest.raises(AccessRefused):
        connect(make_conninfo(dsn, target_session_attrs="standby", dbname="nope"))


def test_a_password_is_in_no_error(dsn: str) -> None:
    with pytest.raises(AccessRefused) as caught:
        connect(make_conninfo(dsn, dbname="nope", password="hunter2"))
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__} {caught.value.facts}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("host=db port=6000 dbname=shop user=u password=p", "db:6000/shop"),
        ("postgresql://u:p@db.example/shop", "db.example:5432/shop"),
        ("host=db user=shop", "db:5432/shop"),
    ],
)
def test_server_is_named_without_secrets(
    text: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PGPORT", "PGDATABASE", "PGHOST", "PGUSER"):
        monkeypatch.delenv(variable, raising=False)
    assert server(text) == named


def test_an_ended_session_is_a_lost_connection(dsn: str) -> None:
    with connect(dsn) as connection:
        psql(dsn, f"select pg_terminate_backend({connection.info.backend_pid}, 5000)")
        with (
            pytest.raises(ConnectionLost, match="terminating connection"),
            named_errors(connection),
        ):
            connection.execute("select 1")


def test_an_ended_walsender_is_a_lost_connection(dsn: str) -> None:
    pgconn = replication(dsn)
    try:
        psql(dsn, f"select pg_terminate_backend({pgconn.backend_pid}, 5000)")
        until(
            lambda: (
                not psql(dsn, f"select 1 from pg_stat_activity where pid = {pgconn.backend_pid}")
            )
        )
        with pytest.raises(ConnectionLost):
            command(pgconn, "IDENTIFY_SYSTEM")
    finally:
        pgconn.finish()


def test_a_missing_right_is_a_refusal(dsn: str) -> None:
    psql(dsn, "create table public.t ()", "drop role if exists reader", "create role reader login")
    try:
        with (
            connect(make_conninfo(dsn, user="reader")) as connection,
            pytest.raises(
                AccessRefused, match=r'denied for table t; run grant select on t to "reader"'
            ),
            named_errors(connection),
        ):
            connection.execute("select * from public.t")
    finally:
        psql(dsn, "drop role reader")


def test_a_missing_right_is_granted_to_the_role_that_the_login_set(dsn: str) -> None:
    psql(
        dsn,
        "drop role if exists reader, acting",
        "create role acting",
        "create role reader login replication in role acting",
        "alter role reader set role = acting",
        "create table public.t (id int)",
    )
    reader = make_conninfo(dsn, user="reader")
    try:
        with connect(reader) as connection:
            with (
                pytest.raises(AccessRefused, match=r'; run grant select on t to "acting"'),
                named_errors(connection),
                connection.transaction(),
            ):
                connection.execute("select * from public.t")
            psql(dsn, 'grant select on t to "acting"')
            assert connection.execute("select * from public.t").fetchall() == []
    finally:
        psql(dsn, "drop owned by acting", "drop role reader, acting")


def test_a_command_gives_rows_and_its_errors_keep_their_state(dsn: str) -> None:
    pgconn = replication(dsn)
    try:
        assert command(pgconn, "select 1 as a, null as b") == [{"a": "1", "b": None}]
        with pytest.raises(psycopg.errors.UndefinedTable):
            command(pgconn, "select * from nope")
        assert command(pgconn, "select 2 as a") == [{"a": "2"}]
    finally:
        pgconn.finish()


@pytest.mark.parametrize(
    ("sqlstate", "name"),
    [
        ("57014", QueryCancelled),
        ("40P01", LocksHeld),
        ("55P03", LocksHeld),
        ("53100", SourceExhausted),
        ("53200", SourceExhausted),
        ("53300", SourceExhausted),
        ("25006", ReadOnlyServer),
    ],
)
def test_what_a_server_says_of_any_query_has_a_name(
    dsn: str, sqlstate: str, name: type[SourceError]
) -> None:
    query = f"do $$ begin raise sqlstate '{sqlstate}' using message = 'as it is'; end $$"
    with (
        connect(dsn) as connection,
        pytest.raises(name, match="as it is"),
        named_errors(connection),
    ):
        connection.execute(query)
    with pytest.raises(name, match="as it is"):
        _walsender(dsn, query)


def test_a_query_that_an_administrator_cancels_is_worth_another_try(dsn: str) -> None:
    sleeping = "pid from pg_stat_activity where application_name = 'slow' and state = 'active'"

    def cancel() -> None:
        until(lambda: psql(dsn, f"select {sleeping}"))
        psql(dsn, f"select pg_cancel_backend({sleeping.replace(' from', ') from', 1)}")

    helper = threading.Thread(target=cancel)
    helper.start()
    with connect(dsn, application_name="slow") as connection:
        with pytest.raises(QueryCancelled) as caught, named_errors(connection):
            connection.execute("select pg_sleep(60)")
        assert caught.value.retry is Retry.LATER
    helper.join()
