"""Bulk requests against a server that answers what a cluster answers when it is in trouble."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pgstream_dagster.errors import IndexGone, SearchRefused, SearchUnreachable
from pgstream_dagster.search import bulk
from pgstream_dagster.search.bulk import Write, send, settle
from pgstream_dagster.search.cluster import Cluster, SearchSettings
from tests.support.plugins.front import Answer as Whole
from tests.support.plugins.front import Request, front

Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


class Answering:
    """Answers each item of a bulk request by `answer(action, meta)`; keeps what it was sent."""

    def __init__(self, answer: Answer, status: int) -> None:
        self.answer, self.status = answer, status
        self.requests: list[list[str]] = []  # ids, in order
        self.whole: Callable[[list[str]], tuple[int, bytes] | None] = lambda ids: None

    def __call__(self, request: Request) -> Whole:
        lines = [json.loads(line) for line in request.body.splitlines()]
        actions = [line for line in lines if line.keys() & {"index", "delete"}]
        writes = [(action, meta) for line in actions for action, meta in line.items()]
        self.requests.append([meta["_id"] for _, meta in writes])
        verdicts = [self.answer(action, meta) for action, meta in writes]
        errors = any(verdict.get("status", 200) >= 300 for verdict in verdicts)
        items = [{action: verdict} for (action, _), verdict in zip(writes, verdicts, strict=True)]
        body = json.dumps({"errors": errors, "items": items}).encode()
        return Whole(*(self.whole(self.requests[-1]) or (self.status, body)))


@contextmanager
def answering(answer: Answer, status: int = 200) -> Iterator[tuple[Cluster, Answering]]:
    answers = Answering(answer, status)
    with front(answers) as server:
        cluster = Cluster(SearchSettings(server.url))
        try:
            yield cluster, answers
        finally:
            cluster.close()


def refusing(kind: str, status: int = 400) -> dict[str, Any]:
    return {"status": status, "error": {"type": kind, "reason": "because"}}


def writes(count: int, body: str = '{"a":1}') -> list[Write]:
    return [Write(str(n), 100 + n, body) for n in range(count)]


def test_documents_that_a_busy_cluster_left_out_are_sent_again() -> None:
    seen: set[str] = set()

    def answer(action: str, meta: dict[str, Any]) -> dict[str, Any]:
        is_first = meta["_id"] not in seen
        seen.add(meta["_id"])
        return {"status": 429 if is_first and int(meta["_id"]) % 2 else 200}

    with answering(answer) as (cluster, server):
        assert send(cluster, "a", writes(5)) == []
    assert server.requests == [["0", "1", "2", "3", "4"], ["1", "3"]]


def test_cluster_that_stays_busy_is_reported_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PATIENCE_SECONDS", 0.3)
    with (
        answering(lambda action, meta: {"status": 429}) as (cluster, _),
        pytest.raises(SearchUnreachable, match="too busy for 2 documents"),
    ):
        send(cluster, "a", writes(2))


def counted(taken: int, at_most: int = 2048) -> str:
    """As Elasticsearch 9.3 says it; OpenSearch has `max_coordinating_and_primary_bytes`."""
    return (
        "rejected execution of primary operation [coordinating_and_primary_bytes=0, all_bytes=0,"
        f" primary_operation_bytes={taken}, max_primary_bytes={at_most}]"
    )


def rejected(reason: str) -> dict[str, Any]:
    return {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": reason}}


def test_document_that_never_fits_is_refused_and_the_others_are_taken() -> None:
    def answer(action: str, meta: dict[str, Any]) -> dict[str, Any]:
        return rejected(counted(4096)) if meta["_id"] == "1" else {"status": 201}

    with answering(answer) as (cluster, server):
        [(write, refusal)] = send(cluster, "a", writes(3))
    assert (write.id, refusal.type) == ("1", bulk.TOO_LARGE)
    assert "primary_operation_bytes=4096, max_primary_bytes=2048" in refusal.reason
    assert server.requests == [["0", "1", "2"]]


WHOLE = json.dumps({"error": {"root_cause": [rejected(counted(4096))["error"]]}}).encode()


@pytest.mark.parametrize("answer", [(429, WHOLE), (413, b"")])
def test_request_that_never_fits_is_sent_document_by_document(answer: tuple[int, bytes]) -> None:
    with answering(lambda action, meta: {"status": 201}) as (cluster, server):
        server.whole = lambda ids: answer if "1" in ids else None
        [(write, refusal)] = send(cluster, "a", writes(3))
    assert (write.id, refusal.type) == ("1", bulk.TOO_LARGE)
    assert str(answer[0]) in refusal.reason
    assert server.requests == [["0", "1", "2"], ["0"], ["1"], ["2"]]


def test_document_that_may_fit_later_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "FIRST_WAIT_SECONDS", 0.01)
    answers = [rejected(counted(2000)), {"status": 201}]
    with answering(lambda action, meta: answers.pop(0)) as (cluster, server):
        assert send(cluster, "a", writes(1)) == []
    assert server.requests == [["0"], ["0"]]


def test_refused_document_is_reported_and_the_others_are_taken() -> None:
    def answer(action: str, meta: dict[str, Any]) -> dict[str, Any]:
        return refusing("mapper_parsing_exception") if meta["_id"] == "1" else {"status": 201}

    with answering(answer) as (cluster, _):
        [(write, refusal)] = send(cluster, "a", writes(3))
    assert write.id == "1"
    assert refusal.type == "mapper_parsing_exception"


@pytest.mark.parametrize(
    ("write", "status"),
    [
        (Write("1", 5, "{}"), 409),  # something newer is there
        (Write("1", 5, None), 404),  # nothing to delete
        (Write("1", 5, None), 409),
    ],
)
def test_write_that_came_late_is_settled(write: Write, status: int) -> None:
    with answering(lambda action, meta: refusing("whatever", status)) as (cluster, server):
        assert send(cluster, "a", [write]) == []
    assert len(server.requests) == 1


def test_missing_index_is_an_error_and_no_dead_letter() -> None:
    gone = refusing("index_not_found_exception", 404)
    with answering(lambda action, meta: gone) as (cluster, _), pytest.raises(IndexGone):
        send(cluster, "a", writes(1))


@pytest.mark.parametrize(
    ("status", "error"), [(401, SearchRefused), (403, SearchRefused), (503, SearchUnreachable)]
)
def test_answer_to_the_whole_request_is_named(status: int, error: type[Exception]) -> None:
    with (
        answering(lambda action, meta: {}, status) as (cluster, _),
        pytest.raises(error),
    ):
        send(cluster, "a", writes(1))


def test_requests_are_cut_by_bytes_and_by_number() -> None:
    large = writes(5, json.dumps({"a": "x" * (2 << 20)}))
    with answering(lambda action, meta: {"status": 200}) as (cluster, server):
        assert send(cluster, "a", [*large, *writes(bulk.REQUEST_ITEMS + 1)]) == []
    assert [len(ids) for ids in server.requests] == [2, 2, bulk.REQUEST_ITEMS, 2]


def test_address_without_a_server_is_unreachable() -> None:
    cluster = Cluster(SearchSettings("http://127.0.0.1:9"))
    with pytest.raises(SearchUnreachable, match=r"127\.0\.0\.1:9"):
        send(cluster, "a", writes(1))


def test_outage_is_waited_out_by_a_patient_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "FIRST_WAIT_SECONDS", 0.01)
    with answering(lambda action, meta: {"status": 200}, status=503) as (cluster, server):
        with pytest.raises(SearchUnreachable):
            settle(cluster, "writer", [write.lines() for write in writes(2)])

        def repaired(action: str, meta: dict[str, Any]) -> dict[str, Any]:
            server.status = 200
            return {"status": 200}

        server.answer = repaired  # the second request is answered with the new status
        assert (
            settle(cluster, "writer", [write.lines() for write in writes(2)], is_patient=True) == {}
        )
        assert server.requests[-1] == ["0", "1"]


def test_outage_that_lasts_ends_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(bulk, "FIRST_WAIT_SECONDS", 0.01)
    with (
        answering(lambda action, meta: {"status": 200}, status=503) as (cluster, _),
        pytest.raises(SearchUnreachable),
    ):
        settle(cluster, "writer", [write.lines() for write in writes(1)], is_patient=True)
