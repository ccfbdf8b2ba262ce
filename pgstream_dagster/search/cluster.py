"""
Requests to a search cluster: OpenSearch 2 and 3, Elasticsearch 9.

One client for all of them: the requests we make are the same. Every failure is a named error that
says whether waiting helps. Errors show addresses and answers, never passwords and keys.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from opensearchpy import OpenSearch
from opensearchpy import exceptions as api

from pgstream_dagster.errors import SearchError, SearchFailed, SearchUnreachable
from pgstream_dagster.search.answers import (
    Json,
    NotThere,
    require_all_shards,
    require_count,
    require_success,
    understood,
)
from pgstream_dagster.search_settings import SearchSettings
from pgstream_dagster.values.raw_json import elements, members

for _name in (
    "opensearch",
    "opensearchpy.trace",
):  # they log a line, or the whole request, per request
    logging.getLogger(_name).setLevel(logging.ERROR)

TIMEOUT_SECONDS: Final = 60.0
"""Of one request: a bulk request of 8 MB on a busy node takes seconds."""

CONNECTIONS: Final = 8
PAGE: Final = 2_000

SCROLL: Final = "5m"
"""How long the cluster keeps a search between two pages."""

EVERY_STATUS: Final = range(1000)
"""The client raises for none of them: `answers` does."""

INDEX_GONE: Final = "index_not_found_exception"


class Stored(NamedTuple):
    """A stored document: its version, and its source as it was sent."""

    version: int
    source: str


class Hit(NamedTuple):
    """A document that a search matched; its source as it was sent, empty if not requested."""

    id: str
    source: str


class Cluster:
    """One cluster; threads may share it."""

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings
        self._client = _client(settings)

    def request(
        self,
        method: str,
        path: str,
        body: Json | str | bytes | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> Any:
        """
        One request; the decoded answer.

        Raises:
            PgstreamError: see `answers.require_success`.
        """
        return json.loads(self.raw(method, path, body, params=params))

    def raw(
        self,
        method: str,
        path: str,
        body: Json | str | bytes | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        """One request; the text of the answer, a JSON object. Raises as `request`."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection = self._client.transport.get_connection()
        try:
            status, _, text = connection.perform_request(
                method, path, params=params, body=data, ignore=EVERY_STATUS
            )
        except api.ConnectionError as error:  # timeouts, TLS and answers cut short, too
            raise SearchUnreachable(self.settings.url, str(error.info or error)) from error
        require_success(self.settings.url, status, text)
        return text

    def change(self, method: str, path: str, body: Json | None = None) -> None:
        """A request that changes indices or aliases; raises as `request`."""
        with understood(self.settings.url):
            self.request(method, path, body)["acknowledged"]

    def get(self, index: str, document: str) -> Json | None:
        """A document with `_source`, `_seq_no` and `_primary_term`, in real time; `None`: none."""
        try:
            stored: Json = self.request("GET", f"/{index}/_doc/{quoted(document)}")
        except NotThere:
            return None
        with understood(self.settings.url):
            return {**stored, "_source": stored["_source"], **_place(stored)}

    def put(self, index: str, document: str, source: Json, *, over: Json | None) -> Json:
        """
        Write a document over the one that was read, or where there was none (`over` is `None`).

        Raises:
            Conflict: it has changed since.
        """
        params: Json = {"op_type": "create"}
        if over is not None:
            params = {"if_seq_no": over["_seq_no"], "if_primary_term": over["_primary_term"]}
        path = f"/{index}/_doc/{quoted(document)}"
        with understood(self.settings.url):
            return _place(self.request("PUT", path, source, params=params))

    def sources(self, index: str, ids: Sequence[str]) -> dict[str, Stored]:
        """The documents that exist, by id, in real time."""
        documents: dict[str, Stored] = {}
        for start in range(0, len(ids), PAGE):
            page = list(ids[start : start + PAGE])
            text = self.raw("POST", f"/{index}/_mget", {"ids": page})
            with understood(self.settings.url):
                answers = elements(members(text)["docs"])
                require_count(answers, len(page))
                documents |= {name: stored for name, stored in map(_stored, answers) if stored}
        return documents

    def ids(self, index: str) -> Iterator[list[str]]:
        """The ids of all documents, page by page; refreshes first."""
        self.refresh(index)
        for page in self.pages(index, {"_source": False, "sort": ["_doc"], "size": PAGE}):
            yield [hit.id for hit in page]

    def pages(self, index: str, body: Json) -> Iterator[list[Hit]]:
        """Every hit of a search as of now, page by page."""
        params = {"scroll": SCROLL, "allow_partial_search_results": "false"}
        text = self.raw("POST", f"/{index}/_search", body, params=params)
        scroll = None
        try:
            while True:
                with understood(self.settings.url):
                    answer = members(text)
                    scroll = json.loads(answer["_scroll_id"])
                    hits = _hits(answer)
                if not hits:
                    return
                yield hits
                text = self.raw("POST", "/_search/scroll", {"scroll": SCROLL, "scroll_id": scroll})
        finally:
            with suppress(SearchError):  # it expires by itself
                self.request("DELETE", "/_search/scroll", {"scroll_id": [scroll]})

    def refresh(self, index: str) -> None:
        """Make everything written so far visible to searches."""
        with understood(self.settings.url):
            self.request("POST", f"/{index}/_refresh")["_shards"]

    def delete(self, index: str, document: str) -> None:
        """Remove a document; no-op if it does not exist."""
        with suppress(NotThere), understood(self.settings.url):
            self.request("DELETE", f"/{index}/_doc/{quoted(document)}")["result"]

    def written(self, index: str) -> int:
        """How many documents its nodes wrote since they started, visible to searches or not."""
        try:
            stats = self.request("GET", f"/{index}/_stats/indexing")
        except NotThere:
            return 0
        with understood(self.settings.url):
            return int(stats["_all"]["primaries"]["indexing"]["index_total"])

    def exists(self, name: str) -> bool:
        """Whether an index or alias has this name."""
        return bool(self.aliases(name))

    def aliases(self, name: str) -> dict[str, list[str]]:
        """Every index of this name or alias, with all its aliases; empty: there is none."""
        try:
            indices = self.request("GET", f"/{name}/_alias")
        except NotThere:
            return {}
        with understood(self.settings.url):
            if not indices and "*" not in name:
                raise ValueError("no index of a name that is not missing")
            return {index: sorted(entry["aliases"]) for index, entry in indices.items()}

    def count(self, index: str) -> int:
        """The documents that searches see."""
        with understood(self.settings.url):
            answer = self.request("GET", f"/{index}/_count")
            require_all_shards(answer)
            return int(answer["count"])

    def create(self, index: str, body: Json) -> None:
        """Create an index unless it exists."""
        try:
            self.change("PUT", f"/{index}", body)
        except SearchFailed as error:
            if "resource_already_exists_exception" not in error.reason:
                raise

    def drop(self, index: str) -> None:
        """Delete an index; no-op if it does not exist."""
        with suppress(NotThere):
            self.change("DELETE", f"/{index}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _place(answer: Json) -> Json:
    """A document's place in the order of writes, for a compare-and-set."""
    return {name: answer[name] for name in ("_seq_no", "_primary_term")}


def _client(settings: SearchSettings) -> OpenSearch:
    """Makes no request yet."""
    options: Json = {"timeout": TIMEOUT_SECONDS, "maxsize": CONNECTIONS, "max_retries": 0}
    if settings.user:
        options["http_auth"] = (settings.user, settings.password)
    if settings.api_key:
        options["headers"] = {"authorization": f"ApiKey {settings.api_key}"}
    if settings.ca_file:
        options["ca_certs"] = settings.ca_file
    return OpenSearch(settings.url, **options)


def _stored(document: str) -> tuple[str, Stored | None]:
    """A document of a multi-get; `None`: it does not exist."""
    parts = members(document)
    if "error" in parts and json.loads(parts["error"])["type"] != INDEX_GONE:
        raise ValueError("a document that could not be read")
    if "error" in parts or parts["found"] != "true":
        return json.loads(parts["_id"]), None
    return json.loads(parts["_id"]), Stored(int(parts["_version"]), parts["_source"])


def _hits(answer: Mapping[str, str]) -> list[Hit]:
    """The hits in a search's answer."""
    shards = {"_shards": json.loads(answer["_shards"]), "timed_out": answer["timed_out"] == "true"}
    require_all_shards(shards)
    hits = map(members, elements(members(answer["hits"])["hits"]))
    return [Hit(json.loads(hit["_id"]), hit.get("_source", "")) for hit in hits]


def quoted(document: str) -> str:
    """An id as part of a path."""
    return quote(document, safe="")
