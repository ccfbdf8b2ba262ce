"""What a bulk request and its answer mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pgstream_dagster.sinks.base import NotNow, Refused, Verdict
from pgstream_dagster.sinks.message import Message

NO_INDEX: Final = 404
FORBIDDEN: Final = 403
BUSY: Final = frozenset({408, 425, 429})

SHOWN: Final = 300
"""Characters of a reason: some quote the document."""


@dataclass(frozen=True, slots=True)
class Post:
    """A message with its index."""

    index: str
    message: Message

    def lines(self) -> bytes:
        """The message in a bulk request: what to do, then the document."""
        action = msgspec.json.encode({"index": {"_index": self.index, "_id": self.message.id}})
        return action + b"\n" + self.message.body + b"\n"


def is_later(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status >= 500 or status in BUSY


def is_of_index(status: int) -> bool:
    """Whether an index takes no document: it does not exist, or is not for us."""
    return status in {NO_INDEX, FORBIDDEN}


def items_of(answer: Any, count: int) -> Sequence[Mapping[str, Any]] | None:
    """What became of each document, in order; `None` if this is no answer of a cluster."""
    items = answer.get("items") if isinstance(answer, dict) else None
    if not isinstance(items, list) or len(items) != count:
        return None
    return [item.get("index", {}) for item in items]


def verdict_of(index: str, item: Mapping[str, Any]) -> Verdict | None:
    """Why a document was not accepted; `None` if it was."""
    status = int(item.get("status", 500))
    if 200 <= status < 300:
        return None
    reason = f"index {index!r}: {_reason(item)}"
    return NotNow(reason) if is_later(status) else Refused(reason)


def _reason(item: Mapping[str, Any]) -> str:
    """Type and reason of an error, and of what caused it."""
    error = item.get("error")
    if not isinstance(error, dict):
        return f"status {item.get('status')}"
    cause = error.get("caused_by") or {}
    texts = [f"{part.get('type')}: {part.get('reason')}" for part in (error, cause) if part]
    return "; ".join(texts)[:SHOWN]
