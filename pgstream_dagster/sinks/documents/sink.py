"""
A sink whose target is OpenSearch or Elasticsearch: a document for each event or change.

Delivered means: the cluster has written the document to the primary shard and its replicas. A
message that comes again, after a crash or an outage, replaces its document by the same one.

A document is refused for its size or its contents, such as a field of another type, or because only
its metadata names an index that does not exist or is not permitted. The cluster says that of each
document; if it refuses a request as a whole, the documents are sent one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from opensearchpy import OpenSearch
from opensearchpy.exceptions import (
    AuthenticationException,
    AuthorizationException,
    ConnectionError,  # noqa: A004 - as the client calls it
    OpenSearchException,
    TransportError,
)

from pgstream_dagster.config.documents import DocumentsConfig
from pgstream_dagster.errors import SinkError, SinkRefused, SinkUnreachable
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.settings import required
from pgstream_dagster.sinks.base import Refused, Verdict, Verdicts
from pgstream_dagster.sinks.documents.answers import (
    Post,
    is_later,
    is_of_index,
    items_of,
    verdict_of,
)
from pgstream_dagster.sinks.message import Message, Messages
from pgstream_dagster.sinks.waves import Waves

AT_ONCE: Final = 1_000
"""Documents of a request; waves bound its bytes."""


class DocumentsSink:
    """Delivers messages as documents; see the module for what it promises."""

    keeps_cursor = False

    def __init__(
        self, config: DocumentsConfig, *, pipeline: str, sink: str, environment: Mapping[str, str]
    ) -> None:
        self._config, self._sink, self._section = config, sink, f"sinks.{sink}.documents"
        self._messages: Final = Messages(pipeline)
        self._client: Final = _client(config, sink, environment)

    def open(self) -> None:
        """Ask the cluster who it is; raises as `Sink.open`."""
        try:
            self._client.info()
        except OpenSearchException as error:
            raise self._named(error) from error

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Send the documents, and wait until the cluster has written them."""

        def send(posts: Mapping[int, Post]) -> Mapping[int, Verdict]:
            return self._send(batch, posts)

        items = map(self._post, self._messages.of_changes(batch.changes))
        waves = Waves(batch.changes, most=AT_ONCE)
        try:
            return waves.deliver(items, lambda post: len(post.message.body), send)
        except OpenSearchException as error:
            raise self._named(error) from error

    def close(self) -> None:
        """Close the connections."""
        with suppress(Exception):
            self._client.close()

    def _post(self, message: Message | Refused) -> Post | Refused:
        if isinstance(message, Refused):
            return message
        index = message.place("index", self._config.index, f"{self._section}.index")
        return index if isinstance(index, Refused) else Post(index, message)

    # --- one wave -------------------------------------------------------------------------------

    def _send(self, batch: ChangeBatch, posts: Mapping[int, Post]) -> Mapping[int, Verdict]:
        batch.require(self._config.timeout_seconds)
        body = b"".join(post.lines() for post in posts.values())
        try:
            answer: Any = self._client.bulk(body=body)
        except TransportError as error:
            if not _is_of_documents(error):
                raise
            if len(posts) > 1:
                alone = (self._send(batch, {number: post}) for number, post in posts.items())
                return {number: verdict for sent in alone for number, verdict in sent.items()}
            return dict.fromkeys(posts, Refused(f"status {error.status_code} for the document"))
        items = items_of(answer, len(posts))
        if items is None:
            raise SinkUnreachable(self._sink, "its answer is none of a search cluster")
        outcomes = zip(posts.items(), items, strict=True)
        verdicts = {n: self._verdict(post, item) for (n, post), item in outcomes}
        return {n: verdict for n, verdict in verdicts.items() if verdict is not None}

    def _verdict(self, post: Post, item: Mapping[str, Any]) -> Verdict | None:
        """
        Why a document was not accepted.

        Raises:
            SinkRefused: the index of the pipeline file does not exist or is not permitted.
        """
        verdict = verdict_of(post.index, item)
        is_own = "index" not in post.message.route
        if verdict is not None and is_own and is_of_index(int(item.get("status", 500))):
            remedy = f"create it, correct {self._section}.index, or give the user the right"
            raise SinkRefused(self._sink, verdict.reason, remedy)
        return verdict

    def _named(self, error: OpenSearchException) -> SinkError:
        """The error of ours for one of the client; the address is not in its text."""
        if isinstance(error, AuthenticationException | AuthorizationException):
            remedy = f"check the variables that {self._section} names, and the user's rights"
            return SinkRefused(self._sink, f"status {error.status_code}", remedy)
        if isinstance(error, ConnectionError):
            return SinkUnreachable(self._sink, f"no connection ({type(error.info).__name__})")
        if isinstance(error, TransportError) and not is_later(int(error.status_code)):
            reason = f"status {error.status_code}: {error.error}"
            return SinkRefused(self._sink, reason, f"correct {self._section}")
        return SinkUnreachable(self._sink, str(error))


def _is_of_documents(error: TransportError) -> bool:
    """Whether a request as a whole was refused for what is in it."""
    return error.status_code in {400, 413}


def _client(config: DocumentsConfig, sink: str, environment: Mapping[str, str]) -> OpenSearch:
    """
    A client that repeats no request by itself.

    Raises:
        MissingSetting, SinkRefused: no address, or none of a cluster.
    """
    # The client logs each failed request, with its address.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    url = required(environment, config.url_from, f"the address of sink {sink!r}")
    if not _is_url(url):
        reason = f"the variable {config.url_from} has no address of a search cluster"
        raise SinkRefused(sink, reason, "give it as https://user:password@host:9200")
    headers = dict[str, str]()
    if config.api_key_from is not None:
        key = required(environment, config.api_key_from, f"the API key of sink {sink!r}")
        headers["Authorization"] = f"ApiKey {key}"
    tls: dict[str, Any] = {} if config.ca is None else {"ca_certs": config.ca}
    return OpenSearch([url], timeout=config.timeout_seconds, max_retries=0, headers=headers, **tls)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False
