"""
Which answers to trust. No I/O.

A proxy between us and the cluster answers with its own pages (login, maintenance) or cuts an answer
short. Only an answer that a cluster can give is trusted, in particular that something does not
exist. Any other counts as no answer: waiting may help.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec

from pgstream_dagster.errors import SearchFailed, SearchRefused, SearchUnreachable

Json: TypeAlias = dict[str, Any]

ENGINE_MEMBERS: Final = frozenset({"found", "result", "succeeded", "alias"})
"""A 404 about a document, a scroll or an alias always has one of these members."""

SHOWN: Final = 80
"""Characters of a foreign answer in a message: enough to recognise where it comes from."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class NotThere(SearchFailed):
    """404: most callers handle it; elsewhere it is a `SearchFailed` as any other."""


class Conflict(SearchFailed):
    """409: another process wrote first; the caller reads again."""


def is_busy(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status >= 500 or status in (408, 425, 429)


def require_success(url: str, status: int, text: str) -> None:
    """
    Check that an answer is a JSON object with a status of success.

    Raises:
        NotThere, Conflict: 404 and 409 from a cluster.
        SearchRefused: 401 and 403.
        SearchUnreachable: waiting may help; also any answer that is not a cluster's.
        SearchFailed: any other answer.
    """
    if 200 <= status < 300:
        if not _is_object(text):
            raise SearchUnreachable(url, _foreign(status, text))
        return
    error = _decoded(text)
    if status in (401, 403):
        raise SearchRefused(url, _reason(error, text))
    if is_busy(status):
        raise SearchUnreachable(url, f"{status}: {_reason(error, text)}")
    if status < 400 or (status in (404, 409) and not _is_engines(error)):
        raise SearchUnreachable(url, _foreign(status, text))
    kind = {404: NotThere, 409: Conflict}.get(status, SearchFailed)
    raise kind(url, status, _reason(error, text))


@contextmanager
def understood(url: str) -> Generator[None]:
    """Raise `SearchUnreachable` for what does not have the form of a cluster's answer."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"an answer that is not a search cluster's ({type(error).__name__}: {error})"
        raise SearchUnreachable(url, reason) from error


def require_all_shards(answer: Json) -> None:
    """Raise `ValueError` if a search or a count covers only a part of the documents."""
    if answer["_shards"]["failed"] or answer.get("timed_out"):
        raise ValueError("not all shards have answered")


def require_count(items: Sequence[object], count: int) -> None:
    """Raise `ValueError` unless there are `count` items."""
    if len(items) != count:
        raise ValueError(f"{len(items):,} items for {count:,}")


def _is_object(text: str) -> bool:
    try:
        _OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError):  # half a surrogate pair, which engines accept
        return _decoded(text) is not None
    return True


def _decoded(text: str) -> Json | None:
    try:
        answer = json.loads(text)
    except RecursionError:  # a document with 1,000 levels, on Python 3.11
        return {} if text.startswith("{") and text.rstrip().endswith("}") else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _is_engines(error: Json | None) -> bool:
    if error is None:
        return False
    cause = error.get("error")
    if isinstance(cause, dict):
        return "type" in cause
    is_of_alias = isinstance(cause, str) and cause.startswith("alias")
    return is_of_alias or not ENGINE_MEMBERS.isdisjoint(error)


def _foreign(status: int, text: str) -> str:
    shown = " ".join(text.split())[:SHOWN]
    where = " to another address" if 300 <= status < 400 else ""
    return f"{status}{where}, which is not a search cluster's answer but a proxy's ({shown!r})"


def _reason(error: Json | None, text: str) -> str:
    """What the cluster reports as wrong; never the request."""
    cause = (error or {}).get("error")
    if not isinstance(cause, dict):
        return str(cause) if cause else " ".join(text.split())[:SHOWN] or "an empty answer"
    roots = cause.get("root_cause")
    root = roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], dict) else cause
    return f"{root.get('type')}: {root.get('reason')}"
