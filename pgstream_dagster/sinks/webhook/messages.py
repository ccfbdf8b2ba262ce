"""The calls that deliver changes: id, headers and body of each. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change

Render: TypeAlias = Callable[[Change], "bytes | None"]
"""A change as the body of a call, in JSON; `None`: this change has no such form."""

TEST_BODY: Final = b'{"type":"pgstream.test"}'
"""Of a test call: no change, but signed like any other."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent; the same changes always make the same id."""

    id: str
    body: bytes
    lsn: Lsn | None  # none: copied rows, or a test


def message(changes: Sequence[Change], bodies: Sequence[bytes], *, is_array: bool) -> Message:
    """The call for these changes, of which there is at least one."""
    last = changes[-1]
    return Message(
        id=last.event_id if len(changes) == 1 else _batch_id(changes),
        body=b"[" + b",".join(bodies) + b"]" if is_array else bodies[0],
        lsn=None if last.ordinal < 0 else last.commit_lsn,
    )


def _batch_id(changes: Sequence[Change]) -> str:
    digest = hashlib.blake2b("\0".join(c.event_id for c in changes).encode(), digest_size=16)
    return f"batch-{digest.hexdigest()}"


def headers(sent: Message, timestamp: int, signature: str) -> dict[str, str]:
    """Standard Webhooks' headers, and those that pgstream sends."""
    lsn = {} if sent.lsn is None else {"x-pgstream-lsn": str(sent.lsn)}
    return {
        "content-type": "application/json",
        "webhook-id": sent.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature,
        "idempotency-key": sent.id,
        **lsn,
    }
