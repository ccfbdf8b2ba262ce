"""
What of a call an answer may repeat, and must not be passed on. No I/O.

The path of a URL is often the only secret of a subscriber, and many servers repeat it in their
errors (`Cannot POST /hooks/T0/B0/XXXX`). So it is replaced in whatever is logged, stored or shown,
as sent and as servers rewrite it, and so are the values of headers.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final
from urllib.parse import quote, unquote, unquote_plus, urlsplit

import httpx

HIDDEN: Final = "***"

SHORTEST: Final = 8
"""Shorter words are no secrets, and may be anywhere in an answer; only whole paths are shorter."""

READ_FACTOR: Final = 8
"""How much more of a text is read than shown, as what is hidden takes more room."""

LONGEST_END: Final = 200
MOST_ENDS: Final = 16
"""Ends of a path that are hidden: an application below another one repeats only its own part."""


class Redaction:
    """Replaces what must not be shown of calls to these URLs with headers of these values."""

    def __init__(self, urls: Iterable[str], header_values: Iterable[str] = ()) -> None:
        self._urls, self._values = tuple(urls), tuple(header_values)

    def with_url(self, url: str) -> Redaction:
        """The same after a redirect to this URL."""
        return self if url in self._urls else Redaction((*self._urls, url), self._values)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        return self._pattern.sub(HIDDEN, text)

    def excerpt(self, text: str, length: int, *, is_whole: bool) -> str:
        """
        At most `length` characters from the beginning of a text, without secrets or parts of one.

        Shape:
            is_whole: whether the text is not the beginning of a longer one.
        """
        shown = printable(text)
        longest = max(map(len, self._forms), default=0)
        part = shown[: READ_FACTOR * length + longest]
        # What begins later may be a part of a secret.
        end = len(part) if is_whole and part == shown else len(part) - longest
        hidden, at = "", 0
        for match in self._pattern.finditer(part):
            if match.start() >= end:
                break
            hidden, at = f"{hidden}{part[at : match.start()]}{HIDDEN}", match.end()
        return (hidden + part[at : max(at, end)])[:length].strip()

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        forms = sorted(self._forms, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, forms)) or r"(?!)", re.IGNORECASE)

    @cached_property
    def _forms(self) -> frozenset[str]:
        """Everything to replace."""
        secrets = [part for url in self._urls for part in _parts(url)]
        for value in self._values:
            secrets += [(word, SHORTEST) for word in (value, *value.split())]
        return frozenset(form for secret, least in secrets for form in _forms(secret, least))


def printable(text: str) -> str:
    """The text in one line, with blanks for what cannot be printed."""
    return "".join(c if c.isprintable() else " " for c in text)


def _parts(url: str) -> Iterator[tuple[str, int]]:
    """Parts of a URL that an answer may repeat; each with the length from which it is hidden."""
    split = urlsplit(url)
    configured = split.path + (f"?{split.query}" if split.query else "")
    for target in {configured, httpx.URL(url).raw_path.decode()}:  # as written, and as sent
        path, _, query = target.partition("?")
        yield from ((whole, 2) for whole in (target, path, f"?{query}"))
        segments = path.split("/")
        ends = ["/" + "/".join(segments[at:]) for at in range(2, len(segments))[:MOST_ENDS]]
        pairs = query.split("&")
        values = [pair.partition("=")[2] for pair in pairs]
        words = [*segments, *(end for end in ends if len(end) <= LONGEST_END), *pairs, *values]
        yield from ((word, SHORTEST) for word in words)


def _forms(secret: str, least: int) -> Iterator[str]:
    """A part as it may be in an answer: decoded, encoded again, in HTML, in JSON."""
    plain = unquote(secret)
    for form in {secret, plain, unquote_plus(secret), quote(plain), quote(plain, safe="")}:
        shown = printable(form)
        if len(shown.strip()) >= least:
            escaped = html.escape(shown)
            yield from (shown, escaped, escaped.replace("&#x27;", "&#39;"))
            yield from (json.dumps(shown)[1:-1], shown.replace("/", "\\/"))
