"""
The members of a JSON object, as they are written. Pure.

Decoding and encoding a document would change numbers (`1.10`, `1e400`, 30 digits), escapes and
repeated names; here a value stays the text it was. Only for JSON of an engine or of ours: text that
is not JSON is not detected.

msgspec splits the text thirty times as fast as our code. Ours is for what engines accept and
msgspec does not: half a surrogate pair as an escape (in type json) and, on Python 3.11, close to
1,000 levels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_NOT_ACCEPTED: Final = (msgspec.DecodeError, RecursionError)

_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\[\s\S])*+"|[\[\]{},:]')


def members(text: str) -> Mapping[str, str]:
    """Name to value of one object, values as written; the last one of a repeated name."""
    try:
        return {name: bytes(value).decode() for name, value in _OBJECT.decode(text).items()}
    except _NOT_ACCEPTED:
        return _members(text)


def elements(text: str) -> list[str]:
    """The elements of one array, as written."""
    try:
        return [bytes(value).decode() for value in _ARRAY.decode(text)]
    except _NOT_ACCEPTED:
        return [text[start:end].strip() for start, end in _spans(text) if text[start:end].strip()]


def _members(text: str) -> Mapping[str, str]:
    values: dict[str, str] = {}
    for start, end in _spans(text):
        name = _TOKEN.search(text, start, end)
        if name is not None:
            colon = text.index(":", name.end())
            values[json.loads(name[0])] = text[colon + 1 : end].strip()
    return values


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """The text between the outermost brackets, split at its commas."""
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "{" | "[":
                depth += 1
                if depth == 1:
                    start = token.end()
            case "}" | "]":
                depth -= 1
                if depth == 0:
                    yield start, token.start()
            case "," if depth == 1:
                yield start, token.start()
                start = token.end()
            case _:
                pass
