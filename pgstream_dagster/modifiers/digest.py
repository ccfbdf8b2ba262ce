"""
Bytes that follow from a secret and a value: what every generated result is made of. Pure.

The hash functions by length are greenmask's, so that its results come out for its salt.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from functools import cache
from typing import Final

CONTEXT: Final = b"pgstream modifier 1: "
"""Part of every derived key: a later version can compute otherwise under another number."""


def encoded(text: str) -> bytes:
    """The bytes of a value; of a bytea column, which is no text, exactly its own."""
    return text.encode("utf-8", "surrogateescape")


@cache
def derived(key: bytes, purpose: str) -> bytes:
    """A key of 32 bytes for one purpose; from it neither `key` nor another one can be computed."""
    return hmac.digest(key, CONTEXT + purpose.encode(), "sha256")


def stream(secret: bytes, text: str, length: int) -> bytes:
    """`length` bytes that nobody without `secret` can tell from random ones."""
    data = secret + encoded(text)
    for bits in (224, 256, 384, 512):
        if length * 8 <= bits:
            return hashlib.new(f"sha3_{bits}", data).digest()[:length]
    return hashlib.shake_256(data).digest(length)


def number(secret: bytes, text: str, least: int, greatest: int) -> int:
    """A whole number between two, both included."""
    # 16 bytes more than the range has make the remainder's bias too small to notice
    length = 16 + (greatest - least).bit_length() // 8
    count = greatest - least + 1
    return least + int.from_bytes(stream(secret, text, length), "big") % count


def choice(secret: bytes, text: str, items: Sequence[str]) -> str:
    """One of the items."""
    return items[number(secret, text, 0, len(items) - 1)]


def characters(secret: bytes, text: str, length: int, symbols: str) -> str:
    """`length` of the symbols."""
    if len(symbols) > 256:
        wide = stream(secret, text, 4 * length)
        places = [int.from_bytes(wide[i : i + 4], "big") for i in range(0, 4 * length, 4)]
    else:
        places = list(stream(secret, text, length))
    return "".join(symbols[place % len(symbols)] for place in places)
