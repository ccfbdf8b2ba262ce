"""What went wrong with SQS, as our errors: by class and AWS' error code. Pure."""

from __future__ import annotations

from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)

from pgstream_dagster.errors import SinkError, SinkRefused, SinkUnreachable

_SET_UP: Final = (
    *(InvalidRegionError, NoCredentialsError, NoRegionError, ParamValidationError),
    *(PartialCredentialsError, ProfileNotFound),
)
_LOGIN: Final = frozenset(
    {
        *("InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"),
        *(
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidAccessKeyId",
            "MissingAuthenticationToken",
        ),
    }
)
_THROTTLED: Final = frozenset(
    {
        *("Throttling", "ThrottlingException", "RequestThrottled", "RequestLimitExceeded"),
        *("TooManyRequestsException", "KmsThrottled"),
    }
)
_QUEUE: Final = frozenset(
    {
        *("NonExistentQueue", "QueueDoesNotExist", "QueueDeletedRecently", "InvalidAddress"),
        *("AccessDenied", "AccessDeniedException", "UnsupportedOperation"),
    }
)


def code_of(error: ClientError) -> str:
    """The code of an answer, without the name of the service before it."""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]


def is_of_queue(error: ClientError) -> bool:
    """Whether the queue takes no message: it does not exist, or is not for us."""
    return code_of(error) in _QUEUE


def is_of_messages(error: ClientError) -> bool:
    """Whether SQS refuses the request for what is in it: its size or its characters."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    code = code_of(error)
    return status == 400 and code not in _LOGIN | _THROTTLED | _QUEUE


def is_later(entry: dict[str, Any]) -> bool:
    """Whether one entry of a request failed for a reason that passes."""
    code = str(entry.get("Code", "")).rpartition(".")[2]
    return not entry.get("SenderFault", False) or code in _THROTTLED


def named(sink: str, error: BotoCoreError | ClientError) -> SinkError:
    """The error of ours for one of the client; its text has no secret."""
    section = f"sinks.{sink}.sqs"
    if isinstance(error, ClientError):
        code = code_of(error)
        reason = f"{code}: {error.response.get('Error', {}).get('Message', '')}"
        if code in _LOGIN:
            return SinkRefused(sink, reason, "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        if is_of_queue(error):
            remedy = f"check {section}.queue_url, and the right sqs:SendMessage"
            return SinkRefused(sink, reason, remedy)
        return SinkUnreachable(sink, reason)
    if isinstance(error, _SET_UP):
        remedy = f"set AWS' variables (AWS_ACCESS_KEY_ID...) and {section}.region"
        return SinkRefused(sink, str(error), remedy)
    return SinkUnreachable(sink, str(error))
