"""Answers of AWS that ElasticMQ does not give, as our errors."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoRegionError

from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.sinks.sqs.failures import is_later, is_of_messages, is_of_queue, named


def answer(code: str, status: int = 400) -> ClientError:
    response = {
        "Error": {"Code": code, "Message": "what AWS says"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "SendMessageBatch")  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["InvalidClientTokenId", "ExpiredToken", "SignatureDoesNotMatch"])
def test_a_login_that_is_refused_waits_for_a_person(code: str) -> None:
    error = named("jobs", answer(code, 403))
    assert isinstance(error, SinkRefused) and "AWS_ACCESS_KEY_ID" in str(error)


@pytest.mark.parametrize(
    "code", ["AWS.SimpleQueueService.NonExistentQueue", "AccessDeniedException", "InvalidAddress"]
)
def test_a_queue_that_takes_no_message_is_known_as_such(code: str) -> None:
    assert is_of_queue(answer(code)) and not is_of_messages(answer(code))
    assert isinstance(named("jobs", answer(code)), SinkRefused)


@pytest.mark.parametrize(
    ("code", "status"),
    [("Throttling", 400), ("RequestThrottled", 400), ("InternalError", 500), ("Busy", 503)],
)
def test_what_passes_is_waited_for(code: str, status: int) -> None:
    error = answer(code, status)
    assert not is_of_queue(error) and not is_of_messages(error)
    assert isinstance(named("jobs", error), SinkUnreachable)


@pytest.mark.parametrize("code", ["InvalidParameterValue", "BatchRequestTooLong"])
def test_a_request_that_is_refused_for_its_contents_is_known_as_such(code: str) -> None:
    assert is_of_messages(answer(code)) and not is_of_queue(answer(code))


def test_an_entry_fails_for_now_unless_it_is_the_senders_fault() -> None:
    assert is_later({"Code": "InternalError", "SenderFault": False})
    assert is_later({"Code": "RequestThrottled", "SenderFault": True})
    assert not is_later({"Code": "InvalidMessageContents", "SenderFault": True})


def test_errors_of_the_library_are_an_outage_or_a_set_up_to_correct() -> None:
    away = EndpointConnectionError(endpoint_url="https://sqs.example")
    assert isinstance(named("jobs", away), SinkUnreachable)
    assert isinstance(named("jobs", NoRegionError()), SinkRefused)
