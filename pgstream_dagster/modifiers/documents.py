"""
Operations on single values of JSON documents and hstores. Pure.

Only what lies on a path is decoded; everything else stays as it is written, so a number keeps all
its digits. Of repeated keys of an object the last one counts and the others go, as in jsonb.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw

from pgstream_dagster.modifiers.unfit import Unfit

ITEMS: Final = "#"
"""The step of a path that means every item of an array."""

NewJson = Callable[[bytes], bytes]
"""The JSON of a value to that of its successor."""


def steps_of(path: str) -> tuple[str, ...]:
    """The steps of a path; a backslash takes the meaning from a dot."""
    steps = re.findall(r"(?:[^.\\]|\\.)+", path)
    return tuple(re.sub(r"\\(.)", r"\1", step) for step in steps)


class Missing(StrEnum):
    """What happens where there is no value at a path."""

    SKIP = "skip"
    FAIL = "fail"
    CREATE = "create"


def edited(document: bytes, path: tuple[str, ...], new: NewJson | None, missing: Missing) -> bytes:
    """
    A document with new values at a path, or without them (`new` is `None`).

    An item of an array that lacks the rest of the path does not keep the others from their change.

    Raises:
        Unfit: it is no JSON, or nothing is at the path and `missing` is `FAIL`.
    """
    if not path:
        assert new is not None
        return new(document)
    container, places = _opened(document, path[0], creates=missing is Missing.CREATE)
    if places is None:
        if missing is Missing.FAIL:
            raise Unfit("there is no value at the path")
        return document
    for place in reversed(places):
        if new is None and len(path) == 1:
            del container[place]
            continue
        is_there = place in container if isinstance(container, dict) else place < len(container)
        value = bytes(container[place]) if is_there else _empty(path)
        changed = Raw(edited(value, path[1:], new, missing))
        if isinstance(container, list) and not is_there:
            container.append(changed)
        else:
            container[place] = changed
    return msgspec.json.encode(container)


def _opened(document: bytes, step: str, *, creates: bool) -> tuple[Any, list[Any] | None]:
    """A document's outermost container, and the places in it that a step means; `None`: nowhere."""
    text = document.strip()
    if text.startswith(b"{"):
        members = _decoded(document, dict[str, Raw])
        return members, [step] if step in members or creates else None
    if text.startswith(b"["):
        items = _decoded(document, list[Raw])
        if step == ITEMS:
            return items, list(range(len(items)))
        index = int(step) if re.fullmatch(r"[0-9]{1,9}", step) else len(items) + 1
        return items, [index] if index < len(items) + creates else None
    _decoded(document, Raw)
    return {}, [step] if creates and text == b"null" else None


def _empty(path: tuple[str, ...]) -> bytes:
    """What is put where a value is created: an array where the next step is its first place."""
    return b"[]" if path[1:2] == ("0",) else b"null"


def plain(document: bytes) -> Any:
    """A value for a template: text, numbers, lists, mappings; NULL for JSON's null."""
    return _decoded(document, Any)


def checked(document: bytes) -> bytes:
    """The same bytes. Raises `Unfit` if a template made no JSON."""
    try:
        msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unfit("the template makes no JSON; text needs '| tojson'") from None
    return document


def _decoded(document: bytes, shape: Any) -> Any:
    try:
        return msgspec.json.decode(document, type=shape)
    except msgspec.DecodeError:
        raise Unfit("it is no JSON") from None


_QUOTED: Final = r'"((?:[^"\\]|\\.)*)"'
_PAIR: Final = re.compile(rf"\s*{_QUOTED}\s*=>\s*(?:{_QUOTED}|(NULL))\s*(?:,|$)", re.DOTALL)


def parsed_hstore(text: str) -> dict[str, str | None]:
    """The pairs of an hstore's text."""
    pairs: dict[str, str | None] = {}
    place = 0
    while place < len(text):
        match = _PAIR.match(text, place)
        if match is None:
            raise Unfit("it is no hstore")
        pairs[_plain(match[1])] = None if match[3] else _plain(match[2])
        place = match.end()
    return pairs


def hstore_text(pairs: dict[str, str | None]) -> str:
    """The text of an hstore, as Postgres writes it."""
    return ", ".join(
        f"{_quoted(key)}=>{'NULL' if value is None else _quoted(value)}"
        for key, value in pairs.items()
    )


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
