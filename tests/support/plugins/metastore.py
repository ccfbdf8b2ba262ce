"""A real Hive metastore for tests: `metastore`, one a session; a test has databases of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import cast

import pytest

from pgstream_dagster.errors import PgstreamError
from tests.support.harness.metastore import HiveMetastore
from tests.support.plugins.cluster import add_logs, unavailable


@pytest.fixture(scope="session")
def metastore() -> Iterator[HiveMetastore]:
    """The metastore of the session."""
    server = HiveMetastore()
    try:
        try:
            server.start()
        except PgstreamError as error:
            unavailable("Hive metastore", [str(error)])
        yield server
    finally:
        server.close()


@pytest.fixture
def hive_database() -> str:
    """The name of a database that no other test has."""
    return f"lake_{secrets.token_hex(4)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show what the metastore said beside a failed test."""
    report = cast("pytest.TestReport", (yield))
    add_logs(report, item, ("metastore",))
    return report  # type: ignore[return-value]
