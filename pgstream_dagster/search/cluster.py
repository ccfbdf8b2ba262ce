"""
The way to a search cluster: OpenSearch 2 and 3, Elasticsearch 8 and 9.

One client for all of them: the requests we make are the same. Every failure is a named error that
says whether waiting helps; addresses and answers are told, passwords and keys never.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from opensearchpy import OpenSearch
from opensearchpy import exceptions as api

from pgstream_dagster.errors import SearchFailed, SearchRefused, SearchUnreachable
from pgstream_dagster.search.raw_json import elements, members

for _name in ("opensearch", "opensearchpy.trace"):  # a line, or a whole request, each time
    logging.getLogger(_name).setLevel(logging.ERROR)

Json: TypeAlias = dict[str, Any]

TIMEOUT_SECONDS: Final = 60.0
"""Of one request: a bulk request of 8 MB on a busy node takes seconds."""

CONNECTIONS: Final = 8
PAGE: Final = 2_000

SCROLL: Final = "5m"
"""How long the cluster keeps a search between two pages."""
BUSY: Final = frozenset({429, 500, 502, 503, 504})
"""Answers after which the same request may succeed."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How to reach a cluster; secrets are not shown."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    ca_file: str = ""

    def client(self) -> OpenSearch:
        """A client of its own, with its connections; nothing is asked yet."""
        options: Json = {"timeout": TIMEOUT_SECONDS, "maxsize": CONNECTIONS, "max_retries": 0}
        if self.user:
            options["http_auth"] = (self.user, self.password)
        if self.api_key:
            options["headers"] = {"authorization": f"ApiKey {self.api_key}"}
        if self.ca_file:
            options["ca_certs"] = self.ca_file
        return OpenSearch(self.url, **options)


class Stored(NamedTuple):
    """A document that is there: its version, and its source as it was sent."""

    version: int
    source: str


class Hit(NamedTuple):
    """A document that a search found; its source as it was sent, empty if not asked for."""

    id: str
    source: str


class Cluster:
    """One cluster; threads may share it."""

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings
        self._client = settings.client()

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
            NotThere: 404.
            Conflict: 409, another has written first.
            SearchUnreachable: no answer, or one after which waiting helps.
            SearchRefused: the credentials, or what they may do.
            SearchFailed: any other answer.
        """
        with named_errors(self.settings.url):
            perform = self._client.transport.perform_request
            return perform(method, path, params=dict(params or {}), body=body)

    def get(self, index: str, document: str) -> Json | None:
        """A document with `_source`, `_seq_no` and `_primary_term`, as of now; `None`: none."""
        try:
            found = self.request("GET", f"/{index}/_doc/{quoted(document)}")
        except NotThere:
            return None
        return found if found.get("found") else None

    def put(
        self, index: str, document: str, source: Json, *, over: Json | None, refresh: bool = False
    ) -> Json:
        """
        Write a document over the one that was read, or where there was none (`over` is `None`).

        Raises:
            Conflict: it is another by now.
        """
        params: Json = {"refresh": "true"} if refresh else {}
        if over is None:
            params["op_type"] = "create"
        else:
            params |= {"if_seq_no": over["_seq_no"], "if_primary_term": over["_primary_term"]}
        path = f"/{index}/_doc/{quoted(document)}"
        return self.request("PUT", path, source, params=params)

    def sources(self, index: str, ids: Sequence[str]) -> dict[str, Stored]:
        """Documents by id, as of now; those that are there."""
        found: dict[str, Stored] = {}
        for start in range(0, len(ids), PAGE):
            body = {"ids": list(ids[start : start + PAGE])}
            for document in elements(members(self.raw("POST", f"/{index}/_mget", body))["docs"]):
                parts = members(document)
                if parts.get("found") == "true":
                    stored = Stored(int(parts["_version"]), parts["_source"])
                    found[json.loads(parts["_id"])] = stored
        return found

    def raw(self, method: str, path: str, body: Json) -> str:
        """One request; the answer's own text. Raises as `request` does."""
        with named_errors(self.settings.url):
            connection = self._client.transport.get_connection()
            _, _, text = connection.perform_request(method, path, body=json.dumps(body).encode())
        return text

    def ids(self, index: str) -> Iterator[list[str]]:
        """The ids of all documents, a page at a time; refreshes first."""
        self.request("POST", f"/{index}/_refresh")
        for page in self.pages(index, {"_source": False, "sort": ["_doc"], "size": PAGE}):
            yield [hit.id for hit in page]

    def pages(self, index: str, body: Json) -> Iterator[list[Hit]]:
        """Every hit of a search as of now, a page at a time."""
        said = members(self.raw("POST", f"/{index}/_search?scroll={SCROLL}", body))
        scroll: str = json.loads(said["_scroll_id"])
        try:
            while hits := _hits(said):
                yield hits
                again = {"scroll": SCROLL, "scroll_id": scroll}
                said = members(self.raw("POST", "/_search/scroll", again))
                scroll = json.loads(said["_scroll_id"])
        finally:
            self.request("DELETE", "/_search/scroll", {"scroll_id": [scroll]})

    def delete(self, index: str, document: str) -> None:
        """Remove a document; nothing happens if it is not there."""
        try:
            self.request("DELETE", f"/{index}/_doc/{quoted(document)}")
        except NotThere:
            return

    def written(self, index: str) -> int:
        """How many documents its nodes have written since they started, readers see them or not."""
        try:
            found = self.request("GET", f"/{index}/_stats/indexing")
        except NotThere:
            return 0
        return found["_all"]["primaries"]["indexing"]["index_total"]

    def exists(self, name: str) -> bool:
        """Whether an index or alias has this name."""
        return bool(self.aliases(name))

    def aliases(self, name: str) -> dict[str, list[str]]:
        """Every index of this name or alias, with all its aliases; empty: there is none."""
        try:
            found = self.request("GET", f"/{name}/_alias")
        except NotThere:
            return {}
        return {index: sorted(said["aliases"]) for index, said in found.items()}

    def create(self, index: str, body: Json) -> None:
        """Make an index unless one of this name is there."""
        try:
            self.request("PUT", f"/{index}", body)
        except SearchFailed as error:
            if "resource_already_exists_exception" not in error.reason:
                raise

    def drop(self, index: str) -> None:
        """Delete an index; nothing happens if it is not there."""
        try:
            self.request("DELETE", f"/{index}")
        except NotThere:
            return

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class NotThere(SearchFailed):
    """404: most callers know what it means; where none does, it is an answer like any other."""


class Conflict(SearchFailed):
    """409: another has written first; the caller reads again."""


@contextmanager
def named_errors(url: str) -> Generator[None]:
    """Errors of the client under our names."""
    try:
        yield
    except api.NotFoundError as error:
        raise NotThere(url, 404, _reason(error)) from error
    except api.ConflictError as error:
        raise Conflict(url, 409, _reason(error)) from error
    except (api.AuthenticationException, api.AuthorizationException) as error:
        raise SearchRefused(url, _reason(error)) from error
    except api.ConnectionError as error:  # no answer; timeouts and TLS too
        raise SearchUnreachable(url, str(error.info or error)) from error
    except api.TransportError as error:
        if error.status_code in BUSY:
            raise SearchUnreachable(url, f"{error.status_code}: {_reason(error)}") from error
        raise SearchFailed(url, int(error.status_code), _reason(error)) from error


def _hits(said: Mapping[str, str]) -> list[Hit]:
    """Of a search's answer."""
    found = map(members, elements(members(said["hits"])["hits"]))
    return [Hit(json.loads(hit["_id"]), hit.get("_source", "")) for hit in found]


def quoted(document: str) -> str:
    """An id as a part of a path."""
    return quote(document, safe="")


def _reason(error: api.TransportError) -> str:
    """What the cluster says is wrong; never the request."""
    said: Any = error.info
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        cause = (said["error"].get("root_cause") or [said["error"]])[0]
        return f"{cause.get('type')}: {cause.get('reason')}"
    return str(error.error)
