"""
Bulk requests: a verdict per document, requests limited by bytes, patience with a busy cluster.

Writes go through a generation's own write alias and require it, so that a write to a deleted index
is an error, and does not create one without a mapping. Versions are commit LSNs (`external_gte`):
the cluster refuses a write older than the stored document, which counts as done. At most one write
per id in a call; the call returns when all of them are settled.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from pgstream_dagster.backoff import waits
from pgstream_dagster.errors import IndexGone, SearchFailed, SearchUnreachable
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.search.answers import Json, is_busy, require_count, understood
from pgstream_dagster.search.cluster import INDEX_GONE, Cluster
from pgstream_dagster.search.ids import Key

if TYPE_CHECKING:  # the tasks of a re-index import this module and write no dead letter
    from pgstream_dagster.changelog.dead_letters import DeadLetter
    from pgstream_dagster.search.control import Generation

REQUEST_BYTES: Final = 5 << 20
"""Past a few MB a request gets no cheaper, and the node must hold it in memory."""

REQUEST_ITEMS: Final = 2_000

PATIENCE_SECONDS: Final = 60.0
"""How long to send documents again that the cluster is too busy for, before it is an error."""

FIRST_WAIT_SECONDS: Final = 0.1
LONGEST_WAIT_SECONDS: Final = 5.0

ANSWER: Final = (
    "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by"
)
"""Enough for a verdict per item, in order, at 20 bytes each."""

OLDER: Final = 409
MISSING: Final = 404
CONTENT_TOO_LARGE: Final = 413

TOO_LARGE: Final = "document_too_large"
"""The type of our own refusals: the engine reports only that it is too busy."""

COUNTED: Final = re.compile(r"operation_bytes=(\d+), max_\w+=(\d+)")
"""In an answer 429: the memory that an operation takes, and the most that all of them may take."""

Lines: TypeAlias = Sequence[bytes | memoryview]
"""Per item its lines of a bulk request, the last one ended by a newline."""


@dataclass(frozen=True, slots=True)
class Write:
    """A document as it shall be from `version` (a commit LSN) on; `body` `None`: deleted."""

    id: str
    version: int
    body: str | None

    def lines(self) -> bytes:
        """Its lines of a bulk request."""
        action = "delete" if self.body is None else "index"
        meta = {"_id": self.id, "version": self.version, "version_type": "external_gte"}
        head = json.dumps({action: meta}) + "\n"
        return (head if self.body is None else f"{head}{self.body}\n").encode()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the cluster will never take a document."""

    type: str
    reason: str

    def letter(
        self, generation: Generation, document: str, key: Key, version: int, body: str | None
    ) -> DeadLetter:
        """The dead letter of a document that was refused so."""
        from pgstream_dagster.changelog.dead_letters import DeadLetter, DeadLetterState

        return DeadLetter(
            generation.index,
            document,
            key,
            generation.epoch,
            Lsn(version),
            DeadLetterState.REFUSED,
            self.type,
            self.reason,
            body,
        )


def send(cluster: Cluster, alias: str, writes: Iterable[Write]) -> list[tuple[Write, Refusal]]:
    """
    Write documents through a generation's write alias; returns those that are refused permanently.

    Raises:
        SearchUnreachable: no answer, or too busy for a minute.
        IndexGone: the alias does not exist.
        SearchRefused, SearchFailed: the request as a whole.
    """
    refused: list[tuple[Write, Refusal]] = []
    for request in _requests(writes):
        refusals = settle(cluster, alias, [lines for _, lines in request])
        refused += [(request[at][0], refusal) for at, refusal in refusals.items()]
    return refused


def _requests(writes: Iterable[Write]) -> Iterator[list[tuple[Write, bytes]]]:
    request: list[tuple[Write, bytes]] = []
    size = 0
    for write in writes:
        lines = write.lines()
        if request and (size + len(lines) > REQUEST_BYTES or len(request) == REQUEST_ITEMS):
            yield request
            request, size = [], 0
        request.append((write, lines))
        size += len(lines)
    if request:
        yield request


def settle(
    cluster: Cluster, alias: str, lines: Lines, *, is_patient: bool = False
) -> dict[int, Refusal]:
    """
    Post one request, and again what the cluster is too busy for; the refusals by place in `lines`.

    `is_patient`: wait for the end of an outage too; for callers that cannot resume later. Raises
    as `send`.
    """
    refused: dict[int, Refusal] = {}
    waiting: Sequence[int] = range(len(lines))
    deadline = time.monotonic() + PATIENCE_SECONDS
    pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    while waiting:
        try:
            items = _post(cluster, alias, b"".join(lines[at] for at in waiting), len(waiting))
        except (SearchUnreachable, SearchFailed) as error:
            if _is_too_large(error):
                return refused | _one_by_one(cluster, alias, lines, waiting, str(error), is_patient)
            if not is_patient or isinstance(error, SearchFailed) or time.monotonic() > deadline:
                raise
            time.sleep(next(pauses))
            continue
        if items is None:
            return refused
        verdicts = dict(zip(waiting, items, strict=True))
        refused |= {at: refusal for at, item in verdicts.items() if (refusal := _refusal(item))}
        too_large = [at for at, item in verdicts.items() if _never_fits(_reason(item))]
        if too_large:
            reason = _reason(verdicts[too_large[0]])
            refused |= _one_by_one(cluster, alias, lines, too_large, reason, is_patient)
        waiting = [
            at for at, item in verdicts.items() if is_busy(item["status"]) and at not in too_large
        ]
        if waiting and time.monotonic() > deadline:
            reason = f"it was too busy for {len(waiting)} documents for {PATIENCE_SECONDS:.0f} s"
            raise SearchUnreachable(cluster.settings.url, reason)
        if waiting:
            time.sleep(next(pauses))
    return refused


def _post(cluster: Cluster, alias: str, lines: bytes, count: int) -> list[Json] | None:
    """
    One bulk request; the verdict per item, in order, `action` being what was requested.

    `None`: the cluster reports that all of them are written.
    """
    params = {"require_alias": "true", "filter_path": ANSWER}
    answer = cluster.request("POST", f"/{alias}/_bulk", lines, params=params)
    with understood(cluster.settings.url):
        require_count(answer["items"], count)
        if answer["errors"] is False:
            return None
        items = [_verdict(item) for item in answer["items"]]
    if any(item["error"].get("type") == INDEX_GONE for item in items):
        raise IndexGone(alias)
    return items


def _verdict(item: Json) -> Json:
    """An item of an answer; raises what `understood` converts."""
    [(action, verdict)] = item.items()
    error = dict(verdict.get("error", {}))
    return {"action": action, "status": int(verdict["status"]), "error": error}


def _refusal(item: Json) -> Refusal | None:
    """`None`: the item is settled, or may be when sent again."""
    status = item["status"]
    was_not_there = status == MISSING and item["action"] == "delete"
    if status < 300 or is_busy(status) or status == OLDER or was_not_there:
        return None
    return Refusal(str(item["error"].get("type")), _reason(item))


def _reason(item: Json) -> str:
    error = item["error"]
    cause = error.get("caused_by") or {}
    return ": ".join(part for part in (error.get("reason"), cause.get("reason")) if part)


def _is_too_large(error: SearchUnreachable | SearchFailed) -> bool:
    """Whether the cluster, or a proxy before it, will never take a request of this size."""
    if isinstance(error, SearchFailed):
        return error.status == CONTENT_TOO_LARGE
    return _never_fits(error.reason)


def _never_fits(reason: str) -> bool:
    """Of a 429: the operation alone takes more memory than there is for all of them."""
    sizes = COUNTED.search(reason)
    return sizes is not None and int(sizes[1]) > int(sizes[2])


def _one_by_one(
    cluster: Cluster,
    alias: str,
    lines: Lines,
    places: Sequence[int],
    reason: str,
    is_patient: bool,
) -> dict[int, Refusal]:
    """Send each document of a request that was too large alone; one that was alone is refused."""
    if len(places) == 1:
        return {places[0]: Refusal(TOO_LARGE, reason)}
    refused: dict[int, Refusal] = {}
    for at in places:
        if refusals := settle(cluster, alias, [lines[at]], is_patient=is_patient):
            refused[at] = refusals[0]
    return refused
