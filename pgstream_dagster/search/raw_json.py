"""
The members of a JSON object as they are written. Pure.

Reading a document and writing it again would change numbers (`1.10`, `1e400`, 30 digits), escapes
and repeated names; here a value stays the text it was. For JSON of an engine or of ours: what is no
JSON is not found out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\[\s\S])*+"|[\[\]{},:]')


def members(text: str) -> Mapping[str, str]:
    """Name to value of one object, values as written; of a name given twice the last."""
    found: dict[str, str] = {}
    for start, end in _spans(text):
        name = _TOKEN.search(text, start, end)
        if name is not None:
            colon = text.index(":", name.end())
            found[json.loads(name[0])] = text[colon + 1 : end].strip()
    return found


def elements(text: str) -> list[str]:
    """The elements of one array, as written."""
    return [text[start:end].strip() for start, end in _spans(text) if text[start:end].strip()]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """What stands between the outermost brackets, cut at its commas."""
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
