"""Answers that are not a search cluster's: of a proxy, a login page, or cut short."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pgstream_dagster.errors import SearchFailed, SearchRefused, SearchUnreachable
from pgstream_dagster.search import generations
from pgstream_dagster.search.answers import Conflict, NotThere
from pgstream_dagster.search.bulk import Write, send
from pgstream_dagster.search.cluster import Cluster, SearchSettings
from tests.support.plugins.front import Answer, front

HTML = b"<html><body>Please log in</body></html>"
PAGE = Answer(200, HTML, "text/html; charset=utf-8")

FOREIGN = {
    "page": PAGE,
    "page called JSON": PAGE._replace(content_type="application/json"),
    "empty": Answer(200),
    "no content": Answer(204),
    "JSON cut by a proxy": Answer(200, b'{"took": 3, "items": [{"ind'),
    "connection cut": Answer(200, b'{"took": 3, "errors": false, "items": []}', is_cut=True),
    "not UTF-8": Answer(200, b"\xff\xfe\x00"),
    "a list": Answer(200, b"[]"),
    "another API": Answer(200, b'{"status": "ok"}'),
    "an empty object": Answer(200, b"{}"),
    "redirect": Answer(302, HTML, "text/html", location="http://127.0.0.1:9/login"),
    "page that is not there": Answer(404, HTML, "text/html"),
    "route that is not there": Answer(404, b'{"message": "no Route matched with those values"}'),
    "another service's 404": Answer(404, b'{"status": 404, "error": "Not Found"}'),
    "page of a conflict": Answer(409, HTML, "text/html"),
    "list of errors": Answer(503, b'["unavailable"]'),
    **{f"{n} page": Answer(n, HTML, "text/html") for n in (408, 429, 500, 502, 503, 504, 520, 599)},
}


def count(cluster: Cluster) -> object:
    return cluster.count("i")


REQUESTS: dict[str, Callable[[Cluster], object]] = {
    "bulk": lambda cluster: send(cluster, "a", [Write("1", 1, "{}"), Write("2", 1, None)]),
    "get": lambda cluster: cluster.get("i", "1"),
    "put": lambda cluster: cluster.put("i", "1", {}, over=None),
    "delete": lambda cluster: cluster.delete("i", "1"),
    "multi-get": lambda cluster: cluster.sources("i", ["1", "2"]),
    "pages": lambda cluster: list(cluster.pages("i", {})),
    "aliases": lambda cluster: cluster.aliases("a"),
    "count": count,
    "refresh": lambda cluster: cluster.refresh("i"),
    "written": lambda cluster: cluster.written("i"),
    "create": lambda cluster: cluster.create("i", {}),
    "drop": lambda cluster: cluster.drop("i"),
    "where an alias is": lambda cluster: generations.live(cluster, "a"),
}


@contextmanager
def answering(answer: Answer) -> Iterator[Cluster]:
    with front(lambda request: answer) as server:
        cluster = Cluster(SearchSettings(server.url))
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.mark.parametrize("request_name", REQUESTS)
def test_answer_that_is_no_clusters_is_never_believed(request_name: str) -> None:
    for name, answer in FOREIGN.items():
        with answering(answer) as cluster:
            with pytest.raises(SearchUnreachable) as raised:
                REQUESTS[request_name](cluster)
            assert cluster.settings.url in str(raised.value), name


def test_message_shows_status_and_beginning_of_a_foreign_answer() -> None:
    with answering(PAGE) as cluster, pytest.raises(SearchUnreachable, match=r"200.*Please log in"):
        count(cluster)


@pytest.mark.parametrize("status", [401, 403])
def test_login_page_with_its_status_is_a_refusal(status: int) -> None:
    with answering(Answer(status, HTML, "text/html")) as cluster, pytest.raises(SearchRefused):
        count(cluster)


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotThere), (409, Conflict), (400, SearchFailed)]
)
def test_verdict_of_a_cluster_is_believed(status: int, kind: type[Exception]) -> None:
    cause = {"type": "some_exception", "reason": "because"}
    body = json.dumps({"error": {"root_cause": [cause], **cause}, "status": status}).encode()
    with answering(Answer(status, body)) as cluster, pytest.raises(kind, match="because"):
        count(cluster)


def answered(body: dict[str, Any]) -> Answer:
    return Answer(200, json.dumps(body).encode())


@pytest.mark.parametrize(
    "items",
    [
        [{"index": {"status": 201}}],  # of two
        [{"index": {"status": 201}}, {}],
        [{"index": {"status": 201}}, {"delete": {}}],
        [{"index": {"status": 201}}, {"delete": {"status": None}}],
        [{"index": {"status": 400, "error": "text"}}, {"delete": {"status": 200}}],
        "text",
    ],
)
def test_verdicts_are_believed_only_of_a_whole_answer(items: Any) -> None:
    with (
        answering(answered({"errors": True, "items": items})) as cluster,
        pytest.raises(SearchUnreachable),
    ):
        REQUESTS["bulk"](cluster)


def test_success_of_fewer_documents_than_sent_is_no_success() -> None:
    fewer = {"errors": False, "items": [{"index": {"status": 201}}]}
    with answering(answered(fewer)) as cluster, pytest.raises(SearchUnreachable, match="1 items"):
        REQUESTS["bulk"](cluster)


SHARDS = {"total": 2, "failed": 1}


@pytest.mark.parametrize(
    ("request_name", "body"),
    [
        ("multi-get", {"docs": [{"_id": "1", "found": False}]}),  # of two
        ("multi-get", {"docs": [{"_id": n, "error": {"type": "x"}} for n in "12"]}),
        ("count", {"count": 7, "_shards": SHARDS}),
        (
            "pages",
            {"_scroll_id": "s", "_shards": SHARDS, "timed_out": False, "hits": {"hits": []}},
        ),
    ],
)
def test_part_of_the_documents_is_no_answer(request_name: str, body: dict[str, Any]) -> None:
    with answering(answered(body)) as cluster, pytest.raises(SearchUnreachable):
        REQUESTS[request_name](cluster)
