"""Addresses of mail: another one of the same length in front of another domain. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from pgstream_dagster.modifiers.digest import characters, encoded

ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Scramble = Callable[[str], str]
"""A text to another one of its length."""


def salted(salt: str) -> Scramble:
    """As pgstream computes it."""

    def scramble(text: str) -> str:
        digest = hashlib.sha256(encoded(salt + text)).digest()
        places = (
            (digest[index % len(digest)] + (ord(character) & 0xFF)) & 0xFF
            for index, character in enumerate(text)
        )
        return "".join(ALPHABET[place % len(ALPHABET)] for place in places)

    return scramble


def keyed(secret: bytes) -> Scramble:
    """The same shape by a secret; nothing of a long text repeats, as it does with a salt."""

    def scramble(text: str) -> str:
        return characters(secret, text, len(text), ALPHABET)

    return scramble


def emails(scramble: Scramble, replacement_domain: str, exclude_domain: str) -> Scramble:
    """What replaces an address, or each of a list that is written as `{a,b}`."""

    def address(text: str) -> str:
        mailbox, _, domain = text.partition("@") if "@" in text else ("", "", text)
        if exclude_domain and domain == exclude_domain:
            return text
        return scramble(mailbox + domain) + replacement_domain

    def addresses(text: str) -> str:
        if text.startswith("{") and text.endswith("}"):
            return "{" + ",".join(map(address, text[1:-1].split(","))) + "}"
        return address(text)

    return addresses
