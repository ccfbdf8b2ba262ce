"""The embedded search engines, as every other test of search relies on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from pgstream_dagster.embedded import temporary_server
from pgstream_dagster.embedded.opensearch import OpenSearch
from pgstream_dagster.embedded.processes import free_ports, members
from pgstream_dagster.embedded.search_node import PORTS
from pgstream_dagster.errors import ServerNotStarted
from tests.support.plugins.search import EMBEDDED, ENGINES, Node, OwnNode, ask
from tests.support.plugins.search import _drop as drop
from tests.support.plugins.wait import until

ROOT = Path(__file__).parents[2]

PARENT = """
import os, sys, time
from tests.support.plugins.search import EMBEDDED
server = EMBEDDED[sys.argv[1]]().start()
print(server.folder, server.pid, flush=True)
if os.fork() == 0:  # a forked child that lives on, with all descriptors of its parent
    time.sleep(20)
    os._exit(0)
time.sleep(600)
"""


def put(node: Node, index: str, document: str, version: int) -> None:
    path = f"/{index}/_doc/{document}?version={version}&version_type=external&refresh=true"
    ask(node, "PUT", path, {"id": document})


def count(node: Node, index: str) -> int:
    return ask(node, "GET", f"/{index}/_count")["count"]


def test_shared_server_takes_documents_with_versions_of_ours(
    search_node: Node, index_prefix: str
) -> None:
    put(search_node, f"{index_prefix}a", "1", 7)
    with pytest.raises(requests.HTTPError, match="409"):
        put(search_node, f"{index_prefix}a", "1", 7)
    assert count(search_node, f"{index_prefix}a") == 1


def test_indices_and_aliases_of_a_prefix_are_dropped_and_no_others(
    search_node: Node, index_prefix: str
) -> None:
    kept = f"{index_prefix}kept"
    ask(search_node, "PUT", f"/{kept}", {"aliases": {f"{index_prefix}x-alias": {}}})
    ask(search_node, "PUT", f"/{index_prefix}x-1", {"settings": {"index.hidden": True}})
    drop(search_node, f"{index_prefix}x-")
    assert list(ask(search_node, "GET", f"/{index_prefix}*?expand_wildcards=all")) == [kept]
    assert ask(search_node, "GET", f"/{kept}/_alias") == {kept: {"aliases": {}}}


@pytest.mark.long
def test_documents_outlive_a_restart_and_a_crash(own_search_node: OwnNode) -> None:
    before = own_search_node.url
    put(own_search_node, "a", "1", 1)
    own_search_node.settings["node.attr.color"] = 'it\'s "ours"'
    own_search_node.restart()
    [node] = ask(own_search_node, "GET", "/_nodes/settings")["nodes"].values()
    assert node["attributes"]["color"] == 'it\'s "ours"'
    put(own_search_node, "a", "2", 1)
    ask(own_search_node, "POST", "/a/_flush")
    own_search_node.kill()
    with pytest.raises(requests.ConnectionError):
        count(own_search_node, "a")
    own_search_node.start()
    assert (own_search_node.url, count(own_search_node, "a")) == (before, 2)


def test_wrong_setting_is_reported_in_the_servers_own_words() -> None:
    server = OpenSearch(settings={"cluster.no_such_setting": "1"})
    words = r"unknown setting \[cluster\.no_such_setting\]"
    with closing(server), pytest.raises(ServerNotStarted, match=words):
        server.start()
    assert not server.folder.exists()


class AnotherCluster(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response_only(200)
        self.end_headers()
        self.wfile.write(b'{"cluster_name": "another", "status": "green"}')

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def taken_port() -> Iterator[int]:
    """The port of a server that looks like one of ours: cheaper than a second one."""
    [port] = free_ports(PORTS, 1)
    with ThreadingHTTPServer(("127.0.0.1", port), AnotherCluster) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield port
        server.shutdown()
        thread.join()


@pytest.mark.long
def test_port_that_another_server_took_meanwhile_is_passed_over(
    taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    [free] = free_ports(PORTS, 1)
    ports = [taken_port, free]
    monkeypatch.setattr(temporary_server, "free_ports", lambda _ports, _count: iter(ports))
    with OpenSearch() as server:
        assert server.url == f"http://127.0.0.1:{free}"
        assert ask(server, "GET", "/_cluster/health")["cluster_name"] == server.cluster


@pytest.fixture(params=ENGINES)
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    if request.param not in EMBEDDED:
        pytest.skip("no embedded server")
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, request.param],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    with process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_nothing_is_left_when_the_parent_is_killed(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    folder, pid = parent.stdout.readline().split()
    assert Path(folder).exists() and members(int(pid))
    os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not members(int(pid)) and not Path(folder).exists())
