"""
The elements of an array's text, one by one. Pure.

Source:
    https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_ELEMENT: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_QUOTED: Final = re.compile(r'[{},"\\\s]')


def mapped(text: str, change: Callable[[str], str | None]) -> str:
    """The array with every element changed; dimensions, bounds and NULLs stay."""
    bounds, brace, elements = text.partition("{")

    def element(match: re.Match[str]) -> str:
        if match[1] is None and match[2].upper() == "NULL":
            return match[0]
        value = match[2] if match[1] is None else re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL)
        return written(change(value))

    return bounds + brace + _ELEMENT.sub(element, elements)


def written(value: str | None) -> str:
    """An element as Postgres writes it."""
    if value is None:
        return "NULL"
    if value and value.upper() != "NULL" and not _QUOTED.search(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
