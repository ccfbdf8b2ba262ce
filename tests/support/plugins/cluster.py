"""
Real Postgres servers for tests: `postgres`, `dsn`, `own_postgres`, `psql`.

In this order: the server PGSTREAM_TEST_DSN names (a superuser's; wal_level=logical), an embedded
one, a container where Docker answers, else the test is skipped with the reason. REQUIRE_SERVERS=1
turns the skip into a failure. PGSTREAM_TEST_MAJORS=15,18 names the majors that there are.
"""

from __future__ import annotations

import itertools
import os
import platform
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, LiteralString, NoReturn, Protocol, cast

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgstream_dagster.embedded import postgres as embedded
from pgstream_dagster.errors import PgstreamError

ADDRESS: Final = os.environ.get("PGSTREAM_TEST_DSN", "")
MAJORS: Final = [int(major) for major in os.environ.get("PGSTREAM_TEST_MAJORS", "15").split(",")]
REQUIRED: Final = os.environ.get("REQUIRE_SERVERS", "") not in ("", "0")
ALL: Final = os.environ.get("PGSTREAM_TEST_ALL", "") not in ("", "0")
"""Hours instead of minutes: nothing is left to chance, or to the next run."""
LONG: Final = os.environ.get("PGSTREAM_TEST_LONG", "") not in ("", "0")
"""The long tests too, each on one major."""

LOG_SHOWN_BYTES: Final = 4_000
"""Of the server's log, under a failed test: what fits a screen or two."""

_numbers = itertools.count(1)


class Server(Protocol):
    """What a test may ask of the shared server, whichever process started it."""

    @property
    def major(self) -> int: ...
    @property
    def dsn(self) -> str: ...
    def dsn_of(self, database: str) -> str: ...
    def log(self) -> str: ...
    def close(self) -> None: ...


class OwnServer(Server, Protocol):
    """A server of one test alone: it may end it in any way."""

    settings: dict[str, str]

    def start(self) -> object: ...
    def stop(self, mode: embedded.StopMode = "fast", *, timeout_seconds: float = 60) -> None: ...
    def kill(self) -> None: ...
    def restart(self, mode: embedded.StopMode = "fast") -> None: ...


class GivenServer:
    """The server of PGSTREAM_TEST_DSN."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        with psycopg.connect(dsn) as connection:
            self.major = connection.info.server_version // 10_000

    def dsn_of(self, database: str) -> str:
        return make_conninfo(self.dsn, dbname=database)

    def log(self) -> str:
        return ""  # stays where the server writes it

    def close(self) -> None:
        """The server is not ours."""


def psql(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, each in its own transaction; the rows of the last one that has rows."""
    rows: list[tuple[Any, ...]] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(cast("LiteralString", statement))
            if cursor.description is not None:
                rows = cursor.fetchall()
    return rows


def pytest_report_header() -> list[str]:
    """The servers of this run."""
    origin = "PGSTREAM_TEST_DSN" if ADDRESS else f"majors {', '.join(map(str, MAJORS))}"
    return [f"postgres: {origin}{', required' if REQUIRED else ''}; {platform.platform()}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run of every test of the shared server per major; of a private one, too."""
    if "shared_major" in metafunc.fixturenames:
        majors = [0] if ADDRESS else _majors_of(metafunc.definition)
        metafunc.parametrize("shared_major", majors, ids=_name_of, scope="session")
    if "own_major" in metafunc.fixturenames:
        metafunc.parametrize("own_major", _majors_of(metafunc.definition), ids=_name_of)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Each test on majors that have what it is about: on one of them, by its name; with
    PGSTREAM_TEST_ALL, or if it is marked so, on every one. Without PGSTREAM_TEST_LONG none that is
    long.

    Those that take long come first.
    """
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (kept if _is_chosen(item) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _is_chosen(item: pytest.Item) -> bool:
    if not (ALL or LONG) and item.get_closest_marker("long") is not None:
        return False
    major = _major_of(item)
    majors = [major for major in MAJORS if _has_what_it_needs(item, major)]
    if major is None or major not in majors:
        return major is None
    if ALL or any(item.get_closest_marker(name) for name in ("one_major", "every_major")):
        return True
    name = item.nodeid.replace(_name_of(major), "", 1)  # whatever else is chosen, it has this major
    return major == majors[zlib.crc32(name.encode()) % len(majors)]


def _major_of(item: pytest.Item) -> int | None:
    """The major of the server that a test runs on; `None`: it has none, or the given one."""
    called = getattr(item, "callspec", None)  # a test without parameters has none
    params = {} if called is None else called.params
    return params.get("shared_major", params.get("own_major")) or None


def _has_what_it_needs(item: pytest.Item, major: int) -> bool:
    marker = item.get_closest_marker("majors")
    bounds = {} if marker is None else marker.kwargs
    return bounds.get("since", major) <= major <= bounds.get("until", major)


@pytest.fixture(autouse=True)
def has_what_it_needs(request: pytest.FixtureRequest) -> None:
    """The given server is known when a test runs on it."""
    if ADDRESS and "postgres" in request.fixturenames:
        server: Server = request.getfixturevalue("postgres")
        if not _has_what_it_needs(request.node, server.major):
            pytest.skip("the given server is of another major")


def _majors_of(test: pytest.Item) -> list[int]:
    marker = test.get_closest_marker("one_major")
    return MAJORS if marker is None else [{"newest": max, "oldest": min}[marker.args[0]](MAJORS)]


def _name_of(major: int) -> str:
    return f"pg{major}" if major else "given"


@pytest.fixture(scope="session")
def postgres(shared_major: int) -> Iterator[Server]:
    """One server for all tests of the session; a test leaves it running and as it was."""
    server = GivenServer(ADDRESS) if ADDRESS else _started(shared_major)
    try:
        yield server
    finally:
        server.close()


def create_database(dsn: str, name: str) -> None:
    """Make an empty database; its files are copied, as writing them into the WAL takes longer."""
    psql(dsn, f"create database {name} template template0 strategy file_copy")


@contextmanager
def database(server: Server) -> Iterator[str]:
    """A database of a name of its own; its slots go with it."""
    name = f"t{next(_numbers)}_{secrets.token_hex(3)}"
    create_database(server.dsn, name)
    try:
        yield server.dsn_of(name)
    finally:
        _drop_database(server.dsn, name)


@pytest.fixture
def dsn(postgres: Server) -> Iterator[str]:
    """A database of this test alone."""
    with database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def module_dsn(postgres: Server) -> Iterator[str]:
    """A database that the tests of a module share."""
    with database(postgres) as made:
        yield made


def is_free(dsn: str, slot: str) -> bool:
    """Whether no session uses a slot."""
    query = f"select from pg_replication_slots where slot_name = '{slot}' and not active"
    return bool(psql(dsn, query))


@pytest.fixture
def replica(dsn: str) -> Iterator[str]:
    """A second database of this test on the same server."""
    name = f"{conninfo_to_dict(dsn)['dbname']}_replica"
    create_database(dsn, name)
    yield make_conninfo(dsn, dbname=name)
    psql(dsn, f"drop database {name} with (force)")


@pytest.fixture
def own_postgres(own_major: int) -> Iterator[OwnServer]:
    """A server of this test alone, which it may stop, kill, restart and configure."""
    server = _started(own_major)
    try:
        yield server
    finally:
        server.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show what the server said beside a failed test."""
    report = cast("pytest.TestReport", (yield))
    add_logs(report, item, ("postgres", "own_postgres"))
    return report  # type: ignore[return-value]


def add_logs(report: pytest.TestReport, item: pytest.Item, servers: Sequence[str]) -> None:
    """Add the end of the log of each server that a failed test had, by the fixture's name."""
    fixtures = cast("dict[str, Any]", getattr(item, "funcargs", {})) if report.failed else {}
    for name in servers:
        log = getattr(fixtures.get(name), "log", None)  # a test's parameter may have the name, too
        if log is not None:
            report.sections.append((f"log of {name}", log()[-LOG_SHOWN_BYTES:]))


def _started(major: int) -> OwnServer:
    reasons: list[str] = []
    for origin, start in (("embedded", _embedded), ("container", _container)):
        try:
            return start(major)
        except (PgstreamError, RuntimeError, OSError) as error:
            reasons.append(f"{origin}: {error}")
    return unavailable(f"Postgres {major}", reasons)


def unavailable(service: str, reasons: list[str]) -> NoReturn:
    """Skip the test, or fail it where every service is required."""
    reason = f"no {service} ({'; '.join(reasons)})"
    if REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _embedded(major: int) -> OwnServer:
    server = embedded.Postgres(major)
    try:
        return server.start()
    except BaseException:
        server.close()
        raise


def _container(major: int) -> OwnServer:
    from tests.support.plugins.container import PostgresContainer  # imports Docker's client

    return PostgresContainer(major).start()


def _drop_database(dsn: str, name: str) -> None:
    """Drop a database with all that would keep it: sessions, slots, prepared transactions."""
    slots = f"select slot_name from pg_replication_slots where database = '{name}'"
    sessions = f"from pg_stat_activity where datname = '{name}'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        run = cast("Callable[[str], psycopg.Cursor[Any]]", connection.execute)
        run(f"alter database {name} allow_connections false")
        run(f"select pg_terminate_backend(pid, 10000) {sessions}")
        for (slot,) in run(slots).fetchall():
            with suppress(psycopg.errors.UndefinedObject):  # a temporary slot goes with its session
                run(f"select pg_drop_replication_slot('{slot}')")
        run(f"drop database {name} with (force)")
