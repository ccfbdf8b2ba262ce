"""
A value's text as JSON, with Python's `re`. Pure.

Runs the expressions of `renderings`, as Java does in the tasks of a re-index.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from json.encoder import encode_basestring
from typing import Final

from pgstream_dagster.values.kinds import Kind
from pgstream_dagster.values.renderings import RENDERINGS

_LETTERLESS: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")
"""Control characters without an escape of their own, such as `\\n`."""

_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')


@cache
def renderer(kind: Kind, is_array: bool) -> Callable[[str], str | None]:
    """The rendering of one kind of value; it returns `None` for a text that cannot be indexed."""
    rendering = RENDERINGS[kind, is_array]
    if not rendering.accepts and not rendering.rewrites:
        return string
    accepts = re.compile(rendering.accepts or r"[\s\S]*")
    rewrites = [
        (re.compile(pattern), re.sub(r"\$([0-9])", r"\\g<\1>", replacement))
        for pattern, replacement in rendering.rewrites
    ]
    escapes = rendering.escapes

    def render(text: str) -> str | None:
        if accepts.fullmatch(text) is None:
            return None
        if escapes:
            text = string(text)
        for pattern, replacement in rewrites:
            text = pattern.sub(replacement, text)
        return text

    return render


def string(text: str) -> str:
    """A text as a JSON string, escaped as Jackson does: with upper-case hexadecimal digits."""
    if _LETTERLESS.search(text) is None:
        return encode_basestring(text)
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if _LETTERLESS.match(character):
        return f"\\u{ord(character):04X}"
    return encode_basestring(character)[1:-1]
