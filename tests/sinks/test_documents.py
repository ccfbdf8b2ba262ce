"""The sink of documents on a real search engine: what arrives, and what happens when it fails."""

from __future__ import annotations

import http.server
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pgstream_dagster.config.documents import DocumentsConfig
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.sinks.base import NotNow, Refused
from pgstream_dagster.sinks.documents.sink import DocumentsSink
from tests.support.harness.outbox_events import batch, event, order
from tests.support.plugins.search import Node, OwnNode, ask


def sink_of(url: str, **keys: Any) -> DocumentsSink:
    config = DocumentsConfig.model_validate({"url_from": "SEARCH_URL", **keys})
    return DocumentsSink(config, pipeline="shop", sink="jobs", environment={"SEARCH_URL": url})


@pytest.fixture
def index(search_node: Node, index_prefix: str) -> str:
    """A new index with a number."""
    return made(search_node, f"{index_prefix}orders")


def made(node: Node, name: str) -> str:
    ask(node, "PUT", f"/{name}", {"mappings": {"properties": {"n": {"type": "long"}}}})
    return name


@pytest.fixture
def opened(search_node: Node, index: str) -> Iterator[DocumentsSink]:
    sink = sink_of(search_node.url, index=index)
    sink.open()
    yield sink
    sink.close()


def documents(node: Node, index: str) -> dict[str, Any]:
    ask(node, "POST", f"/{index}/_refresh")
    answer = ask(node, "POST", f"/{index}/_search", {"size": 10_000})
    return {hit["_id"]: hit["_source"] for hit in answer["hits"]["hits"]}


def test_an_event_and_a_change_arrive_under_their_ids(
    opened: DocumentsSink, search_node: Node, index: str
) -> None:
    assert opened.deliver(batch(event(7), order(42))) == {}
    stored = documents(search_node, index)
    assert stored["e7"] == {"n": 7} and stored["1-0/1A2B3C-42"]["after"]["id"] == 42


@pytest.mark.long
def test_a_batch_that_comes_again_leaves_the_same_documents(
    opened: DocumentsSink, search_node: Node, index: str
) -> None:
    changes = batch(*(event(n, group_id=n // 3) for n in range(1_500)))
    assert opened.deliver(changes) == opened.deliver(changes) == {}
    assert documents(search_node, index) == {f"e{n}": {"n": n} for n in range(1_500)}


def test_metadata_goes_over_the_configured_index(
    opened: DocumentsSink, search_node: Node, index: str
) -> None:
    other = made(search_node, f"{index}-other")
    assert opened.deliver(batch(event(1), event(2, index=other))) == {}
    assert list(documents(search_node, index)) == ["e1"]
    assert list(documents(search_node, other)) == ["e2"]


def test_an_event_without_any_index_is_refused_and_the_others_flow(
    search_node: Node, index: str
) -> None:
    sink = sink_of(search_node.url)
    sink.open()
    changes = [event(1, group_id=1), event(2, index=index), event(3, index=index, group_id=1)]
    verdicts = sink.deliver(batch(*changes))
    sink.close()
    reason = "the event's metadata has no 'index', and sinks.jobs.documents.index gives none"
    assert verdicts[0] == Refused(reason)
    assert isinstance(verdicts[2], NotNow) and verdicts[2].is_behind
    assert set(verdicts) == {0, 2} and list(documents(search_node, index)) == ["e2"]


@pytest.mark.parametrize("payload", [{"n": "no number"}, "no object"])
def test_a_document_that_the_index_does_not_take_is_refused_and_the_others_flow(
    opened: DocumentsSink, search_node: Node, index: str, payload: Any
) -> None:
    """B75."""
    changes = [event(1), event(2, payload, group_id=1), event(3), event(4, group_id=1)]
    verdicts = opened.deliver(batch(*changes))
    assert isinstance(verdicts[1], Refused) and "pars" in verdicts[1].reason
    assert isinstance(verdicts[3], NotNow) and set(verdicts) == {1, 3}
    assert set(documents(search_node, index)) == {"e1", "e3"}


def test_an_index_name_that_is_none_refuses_the_event_and_the_others_flow(
    opened: DocumentsSink, search_node: Node, index: str
) -> None:
    verdicts = opened.deliver(batch(event(1), event(2, index="No Index"), event(3)))
    assert list(verdicts) == [1] and isinstance(verdicts[1], Refused)
    assert set(documents(search_node, index)) == {"e1", "e3"}


class _Answer(http.server.BaseHTTPRequestHandler):
    """Says of every document what a test wants."""

    status, body, asked = 200, b"{}", 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def fake() -> Iterator[tuple[str, type[_Answer]]]:
    answer = type("Answer", (_Answer,), {})
    server = http.server.HTTPServer(("127.0.0.1", 0), answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://ann:geheim@127.0.0.1:{server.server_port}", answer
    server.shutdown()
    thread.join()
    server.server_close()


def item(status: int, kind: str) -> bytes:
    error = f'{{"type": "{kind}", "reason": "why"}}'
    return f'{{"items": [{{"index": {{"status": {status}, "error": {error}}}}}]}}'.encode()


def test_what_a_cluster_says_of_a_document_is_a_verdict(fake: tuple[str, type[_Answer]]) -> None:
    url, answer = fake
    sink = sink_of(url, index="own")
    for status, kind in ((429, NotNow), (503, NotNow), (400, Refused), (409, Refused)):
        answer.body = item(status, "its_type")
        assert sink.deliver(batch(event(1))) == {0: kind("index 'own': its_type: why")}
    for status in (403, 404):
        answer.body = item(status, "its_type")
        refused = {0: Refused("index 'other': its_type: why")}
        assert sink.deliver(batch(event(1, index="other"))) == refused
        with pytest.raises(SinkRefused, match=r"correct sinks\.jobs\.documents\.index"):
            sink.deliver(batch(event(1)))
    sink.close()


def test_what_a_cluster_says_of_a_request_is_an_error(fake: tuple[str, type[_Answer]]) -> None:
    url, answer = fake
    sink = sink_of(url, index="own")
    for status, kind in (
        *((401, SinkRefused), (403, SinkRefused), (429, SinkUnreachable)),
        *((503, SinkUnreachable), (200, SinkUnreachable)),
    ):
        answer.status = status
        with pytest.raises(kind) as raised:
            sink.deliver(batch(event(1)))
        assert "geheim" not in str(raised.value)
    answer.status, answer.asked = 413, 0
    assert list(sink.deliver(batch(event(1), event(2)))) == [0, 1] and answer.asked == 3
    sink.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1:1"])
def test_a_host_that_does_not_answer_is_tried_again(host: str) -> None:
    sink = sink_of(f"http://ann:geheim@{host}", index="own")
    with pytest.raises(SinkUnreachable, match="cannot deliver now") as raised:
        sink.open()
    assert "geheim" not in str(raised.value)
    sink.close()


@pytest.mark.parametrize("url", ["ftp://user:geheim@host", "http://user:geheim@host:port"])
def test_an_address_of_something_else_is_an_error_that_does_not_have_it(url: str) -> None:
    with pytest.raises(SinkRefused, match="SEARCH_URL has no address of a search") as raised:
        sink_of(url, index="own")
    assert "geheim" not in str(raised.value)


@pytest.mark.long
def test_a_node_that_is_killed_in_mid_batch_gets_every_document(own_search_node: OwnNode) -> None:
    count, is_over = 3_000, threading.Event()
    made(own_search_node, "orders")
    changes = [event(n, group_id=n % 100) for n in range(count)]
    killer = threading.Thread(target=_kill_in_between, args=(own_search_node, is_over))
    killer.start()
    try:
        outages = _deliver_stubbornly(own_search_node.url, changes, killer)
    finally:
        is_over.set()
        killer.join()
    assert outages > 0
    assert documents(own_search_node, "orders") == {f"e{n}": {"n": n} for n in range(count)}


def _kill_in_between(node: OwnNode, is_over: threading.Event) -> None:
    """Kill the node once it has some of the documents, and start it again."""
    while not is_over.is_set() and len(documents(node, "orders")) < 200:
        pass
    node.kill()
    node.start()


def _deliver_stubbornly(url: str, changes: list[Any], killer: threading.Thread) -> int:
    """As the follower does: the batch comes again, to a new sink, until it is delivered."""
    for outages in itertools.count():
        sink = sink_of(url, index="orders")
        try:
            sink.open()
            verdicts = sink.deliver(batch(*changes))
        except SinkUnreachable:
            killer.join()  # it starts the node again
            continue
        finally:
            sink.close()
        if not verdicts:  # else the node is starting, and its shards are not there yet
            return outages
        assert all(isinstance(verdict, NotNow) for verdict in verdicts.values())
    raise AssertionError
