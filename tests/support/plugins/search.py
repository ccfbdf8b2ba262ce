"""
Real search engines for tests: `search_node`, `own_search_node`, `index_prefix`.

In this order: the server PGSTREAM_TEST_SEARCH_URL names, an embedded one, a container where Docker
answers, else the test is skipped with the reason. REQUIRE_SERVERS=1 turns the skip into a failure.
PGSTREAM_TEST_SEARCH=opensearch-3,opensearch-2,elasticsearch-9 runs every such test on each.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, cast

import pytest
import requests

from pgstream_dagster.embedded.opensearch import OpenSearch
from pgstream_dagster.embedded.search_node import SearchNode
from pgstream_dagster.errors import PgstreamError
from tests.support.plugins.cluster import REQUIRED, add_logs, unavailable
from tests.support.plugins.elasticsearch import Elasticsearch

ADDRESS: Final = os.environ.get("PGSTREAM_TEST_SEARCH_URL", "").rstrip("/")

EMBEDDED: Final[dict[str, Callable[[], SearchNode]]] = {
    "opensearch-3": OpenSearch,
    "opensearch-2": lambda: OpenSearch("2"),
    "elasticsearch-9": Elasticsearch,
}

ENGINES: Final = os.environ.get("PGSTREAM_TEST_SEARCH", "opensearch-3").split(",")

_numbers = itertools.count(1)


class Node(Protocol):
    """What a test may ask of the shared server, whichever process started it."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    def log(self) -> str: ...
    def close(self) -> None: ...


class OwnNode(Node, Protocol):
    """A server of one test alone: it may end it in any way."""

    settings: dict[str, str]

    def start(self) -> object: ...
    def stop(self, *, timeout_seconds: float = 60) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...


class GivenNode:
    """The server of PGSTREAM_TEST_SEARCH_URL."""

    def __init__(self, url: str) -> None:
        self.name = "given"
        self.url = url

    def log(self) -> str:
        return ""  # stays where the server writes it

    def close(self) -> None:
        """The server is not ours."""


def ask(node: Node, method: str, path: str, body: Any = None) -> Any:
    """What the server answers to a request, as JSON; an answer of 400 and above is an error."""
    with requests.Session() as session:
        session.trust_env = False  # a proxy of the machine does not lead to 127.0.0.1
        answer = session.request(method, f"{node.url}{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json() if answer.content else None


def pytest_report_header() -> list[str]:
    """The search engines of this run."""
    origin = "PGSTREAM_TEST_SEARCH_URL" if ADDRESS else ", ".join(ENGINES)
    return [f"search: {origin}{', required' if REQUIRED else ''}"]


def pytest_configure() -> None:
    """Refuse a name that would otherwise skip every test."""
    if unknown := set(ENGINES) - set(EMBEDDED):
        names = ", ".join(EMBEDDED)
        raise pytest.UsageError(f"PGSTREAM_TEST_SEARCH={','.join(unknown)}: not one of {names}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run of every test of the shared server per engine; of a private one, too."""
    if "shared_engine" in metafunc.fixturenames:
        engines = ["given"] if ADDRESS else ENGINES
        metafunc.parametrize("shared_engine", engines, scope="session")
    if "own_engine" in metafunc.fixturenames:
        metafunc.parametrize("own_engine", ENGINES)


@pytest.fixture(scope="session")
def search_node(shared_engine: str) -> Iterator[Node]:
    """One server for all tests of the session; a test leaves it running and as it was."""
    node = GivenNode(ADDRESS) if ADDRESS else _started(shared_engine)
    try:
        yield node
    finally:
        node.close()


@pytest.fixture
def own_search_node(own_engine: str) -> Iterator[OwnNode]:
    """A server of this test alone, which it may stop, kill, restart and configure."""
    node = _started(own_engine)
    try:
        yield node
    finally:
        node.close()


@pytest.fixture
def index_prefix(search_node: Node) -> Iterator[str]:
    """How this test's names of indices and aliases begin; what has such a name goes at the end."""
    prefix = f"t{next(_numbers)}-{secrets.token_hex(3)}-"
    try:
        yield prefix
    finally:
        _drop(search_node, prefix)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show what the server said beside a failed test."""
    report = cast("pytest.TestReport", (yield))
    add_logs(report, item, ("search_node", "own_search_node"))
    return report  # type: ignore[return-value]


def _drop(node: Node, prefix: str) -> None:
    """Delete by full names: patterns are refused where `destructive_requires_name` is on."""
    listed = f"{prefix}*?format=json&expand_wildcards=all"
    names = {
        listed_index["index"]
        for listed_index in ask(node, "GET", f"/_cat/indices/{listed}&h=index")
    }
    for index in names:
        if index.startswith(prefix):  # the others were found by the name of an alias
            ask(node, "DELETE", f"/{index}")
    for alias in ask(node, "GET", f"/_cat/aliases/{listed}"):
        ask(node, "DELETE", f"/{alias['index']}/_alias/{alias['alias']}")


def _started(engine: str) -> OwnNode:
    reasons: list[str] = []
    for origin, start in (("embedded", _embedded), ("container", _container)):
        try:
            return start(engine)
        except (PgstreamError, RuntimeError, OSError) as error:
            reasons.append(f"{origin}: {error}")
    return unavailable(engine, reasons)


def _embedded(engine: str) -> OwnNode:
    node = EMBEDDED[engine]()
    try:
        return node.start()
    except BaseException:
        node.close()
        raise


def _container(engine: str) -> OwnNode:
    from tests.support.plugins.search_container import SearchContainer  # imports Docker's client

    return SearchContainer(engine).start()
