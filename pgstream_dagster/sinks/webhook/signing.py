"""
Signatures of the Standard Webhooks specification, version v1 (HMAC-SHA256). Bytes in, text out.

A secret is never shown: not by `repr`, not in an error. The specification's own library verifies
these signatures in the tests, so it does not make them.

Source:
    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

PREFIX: Final = "whsec_"

LEAST_BYTES: Final = 24
MOST_BYTES: Final = 64
"""The specification's limits."""

EXPECTED: Final = (
    f"{PREFIX} and the base64 of {LEAST_BYTES} to {MOST_BYTES} random bytes, such as the output of"
    f' echo "{PREFIX}$(openssl rand -base64 32)"'
)


@dataclass(frozen=True, slots=True)
class Secret:
    """The key that a subscriber and we share."""

    key: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The secret written as `whsec_<base64>`; raises `ValueError`, which does not repeat it."""
        if not text.startswith(PREFIX):
            raise ValueError(EXPECTED)
        try:
            key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            raise ValueError(EXPECTED) from None
        if not LEAST_BYTES <= len(key) <= MOST_BYTES:
            raise ValueError(EXPECTED)
        return cls(key)

    def for_url(self, url: str) -> Self:
        """
        The secret of one subscriber.

        Made from this one and never stored: no subscriber can sign for another, and the table of
        subscriptions, which a publication of all tables publishes, contains no secret.
        """
        return type(self)(hmac.digest(self.key, url.encode(), hashlib.sha256))

    @property
    def text(self) -> str:
        """As the subscriber's library takes it."""
        return PREFIX + base64.b64encode(self.key).decode()


def signature(secrets: Sequence[Secret], message_id: str, timestamp: int, body: bytes) -> str:
    """The `webhook-signature` header: one signature for each secret, the current one first."""
    content = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(secret.key, content, hashlib.sha256) for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
