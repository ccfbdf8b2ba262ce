"""
A sink whose target is Amazon SQS.

Delivered means: SQS has accepted the message. A FIFO queue keeps the order of a group
(`MessageGroupId`) and drops a message that comes again within five minutes, by its id
(`MessageDeduplicationId`). Other queues keep no order and may have a message twice, with the same
attribute `pgstream-id`.

A message is refused for its size or its characters, or because only its metadata names a queue that
does not exist or is not permitted. If SQS refuses a request as a whole for what is in it, its
messages are sent one by one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from pgstream_dagster.config.sqs import SqsConfig
from pgstream_dagster.errors import SinkRefused, SinkUnreachable
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.sinks.base import NotNow, Refused, Verdict, Verdicts
from pgstream_dagster.sinks.message import Message, Messages
from pgstream_dagster.sinks.sqs.failures import is_later, is_of_messages, is_of_queue, named
from pgstream_dagster.sinks.waves import Waves

AT_ONCE: Final = 10
"""Messages of a request, by SQS' own limit."""

REQUEST_BYTES: Final = 240_000
"""Under the 256 KiB of a request that every queue takes, with its attributes; a larger message is
sent alone, and SQS decides."""

ATTRIBUTE_BYTES: Final = 200
"""About what a message has besides its body."""

ID: Final = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
"""What SQS takes as the id of a message or group: letters, digits and punctuation."""


@dataclass(frozen=True, slots=True)
class Post:
    """A message with its queue."""

    queue_url: str
    message: Message

    @property
    def size_bytes(self) -> int:
        """What SQS counts, about."""
        return len(self.message.body) + ATTRIBUTE_BYTES

    def entry(self, number: int) -> dict[str, Any]:
        """The message in a request, where `number` identifies it."""
        message = self.message
        attributes = {
            name: {"DataType": "String", "StringValue": text}
            for name, text in message.headers().items()
        }
        entry: dict[str, Any] = {
            "Id": str(number),
            "MessageBody": message.body.decode(),
            "MessageAttributes": attributes,
        }
        if self.queue_url.endswith(".fifo"):
            entry["MessageGroupId"] = _id(message.group or message.id)
            entry["MessageDeduplicationId"] = _id(message.id)
        return entry


class SqsSink:
    """Delivers messages to queues; see the module for what it promises."""

    keeps_cursor = False

    def __init__(
        self, config: SqsConfig, *, pipeline: str, sink: str, environment: Mapping[str, str]
    ) -> None:
        self._config, self._sink, self._section = config, sink, f"sinks.{sink}.sqs"
        self._environment = environment
        self._messages: Final = Messages(pipeline)
        self._client: Any = None

    def open(self) -> None:
        """Make the client, and ask for the queue of the configuration; raises as `Sink.open`."""
        self.close()
        try:
            self._client = self._new_client()
            if self._config.queue_url is not None:
                self._client.get_queue_attributes(QueueUrl=self._config.queue_url)
        except (BotoCoreError, ClientError) as error:
            raise named(self._sink, error) from error
        except ValueError:
            reason = "its endpoint_url is no address"
            raise SinkRefused(self._sink, reason, f"correct {self._section}") from None

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Send the messages, and wait until SQS has accepted them."""

        def send(posts: Mapping[int, Post]) -> Mapping[int, Verdict]:
            return self._send(batch, posts)

        items = map(self._post, self._messages.of_changes(batch.changes))
        waves = Waves(batch.changes, most=AT_ONCE, most_bytes=REQUEST_BYTES)
        try:
            return waves.deliver(items, lambda post: post.size_bytes, send)
        except (BotoCoreError, ClientError) as error:
            raise named(self._sink, error) from error

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()

    # --- where a message goes -------------------------------------------------------------------

    def _post(self, message: Message | Refused) -> Post | Refused:
        if isinstance(message, Refused):
            return message
        url = message.place("queue_url", self._config.queue_url, f"{self._section}.queue_url")
        return url if isinstance(url, Refused) else Post(url, message)

    # --- one wave -------------------------------------------------------------------------------

    def _send(self, batch: ChangeBatch, posts: Mapping[int, Post]) -> Mapping[int, Verdict]:
        """Send messages, with one request for each queue."""
        verdicts: dict[int, Verdict] = {}
        for url in dict.fromkeys(post.queue_url for post in posts.values()):
            of_queue = {index: post for index, post in posts.items() if post.queue_url == url}
            batch.require(self._config.timeout_seconds)
            verdicts |= self._request(batch, url, of_queue)
        return verdicts

    def _request(
        self, batch: ChangeBatch, url: str, posts: Mapping[int, Post]
    ) -> Mapping[int, Verdict]:
        if self._client is None:
            raise SinkUnreachable(self._sink, "not connected")
        entries = [post.entry(index) for index, post in posts.items()]
        try:
            answer = self._client.send_message_batch(QueueUrl=url, Entries=entries)
        except ClientError as error:
            if is_of_queue(error):
                return self._of_queue(posts, error)
            if not is_of_messages(error):
                raise
            if len(posts) > 1:
                alone = (self._send(batch, {index: post}) for index, post in posts.items())
                return {index: verdict for sent in alone for index, verdict in sent.items()}
            return dict.fromkeys(posts, Refused(f"queue {url!r}: {error}"))
        return {int(entry["Id"]): _verdict(url, entry) for entry in answer.get("Failed", ())}

    def _of_queue(self, posts: Mapping[int, Post], error: ClientError) -> Mapping[int, Verdict]:
        """Verdicts on messages whose queue takes none; raises if the configuration names it."""
        if any("queue_url" not in post.message.route for post in posts.values()):
            raise error
        return {index: Refused(f"queue {p.queue_url!r}: {error}") for index, p in posts.items()}

    def _new_client(self) -> Any:
        """A client that repeats no request by itself, and one whose keys are in the environment."""
        seconds = self._config.timeout_seconds
        session: Any = boto3.Session(
            aws_access_key_id=self._environment.get("AWS_ACCESS_KEY_ID"),
            aws_secret_access_key=self._environment.get("AWS_SECRET_ACCESS_KEY"),
            aws_session_token=self._environment.get("AWS_SESSION_TOKEN"),
            region_name=self._config.region or self._environment.get("AWS_REGION"),
        )
        return session.client(
            "sqs",
            endpoint_url=self._config.endpoint_url,
            config=Config(
                connect_timeout=seconds,
                read_timeout=seconds,
                retries={"total_max_attempts": 1},
            ),
        )


def _verdict(url: str, entry: dict[str, Any]) -> Verdict:
    reason = f"queue {url!r}: {entry.get('Code', '')}: {entry.get('Message', '')}"
    return NotNow(reason) if is_later(entry) else Refused(reason)


def _id(text: str) -> str:
    """A text as SQS takes it for an id: itself, or its hash."""
    return text if ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()
