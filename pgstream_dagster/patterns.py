"""
Patterns that name tables: `public.orders`, `shop.*`, `*.audit_?`, `orders`. No I/O.

`*` matches any text, `?` one character. Matching is case-sensitive; names are not folded. A name
without a namespace is in `public`. A part that contains a dot, a blank, a quote or a literal
wildcard is written in double quotes, as in SQL, and is matched literally.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

DEFAULT_NAMESPACE: Final = "public"

OWN_NAMESPACE: Final = "pgstream"
"""The schema of our own tables on the source: only patterns that name it match them."""

_PART: Final = r'(?:"(?:[^"]|"")+"|[^".\s]+)'
_PLAIN: Final = r'[^".\s*?]+'
_PATTERN: Final = re.compile(rf"(?:({_PART})\.)?({_PART})")


def full_name(namespace: str, name: str) -> str:
    """`namespace.name` as a pattern that matches this table only: each table has one such name."""
    return ".".join(
        part if re.fullmatch(_PLAIN, part) else '"' + part.replace('"', '""') + '"'
        for part in (namespace, name)
    )


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A pattern for tables; `str()` returns it as it was written."""

    written: str
    namespace: re.Pattern[str]
    name: re.Pattern[str]
    is_exact: bool  # names one table, so it is an error if that is missing

    @classmethod
    def parse(cls, written: str) -> Self:
        """Parse a pattern; raises `ValueError` with what is wrong with it."""
        match = _PATTERN.fullmatch(written)
        if match is None:
            raise ValueError(
                f"{written!r} is no table pattern; write namespace.table, with * and ? as"
                ' wildcards and "double quotes" around parts with dots or blanks'
            )
        namespace, name = match[1] or DEFAULT_NAMESPACE, match[2]
        is_wild = any(_is_wild(part) for part in (namespace, name))
        return cls(written, _matcher(namespace), _matcher(name), is_exact=not is_wild)

    def matches(self, namespace: str, name: str) -> bool:
        """Whether the pattern matches this table; case-sensitive, as in Postgres' catalog."""
        return bool(self.namespace.fullmatch(namespace) and self.name.fullmatch(name))

    def __str__(self) -> str:
        return self.written


def matching(patterns: Sequence[TablePattern], namespace: str, name: str) -> list[TablePattern]:
    """The patterns that match a table; a wildcard does not stand for the schema `pgstream`."""
    matches = [pattern for pattern in patterns if pattern.matches(namespace, name)]
    if namespace != OWN_NAMESPACE:
        return matches
    return [pattern for pattern in matches if pattern.namespace.pattern == OWN_NAMESPACE]


def canonical(written: str) -> str:
    """The full name of the table that `written` names; text that is no pattern is unchanged."""
    match = _PATTERN.fullmatch(written)
    if match is None:
        return written
    return full_name(_unquoted(match[1] or DEFAULT_NAMESPACE), _unquoted(match[2]))


def exact(written: str) -> tuple[str, str] | None:
    """Namespace and name of the one table that a pattern names; `None`: it has wildcards."""
    match = _PATTERN.fullmatch(written)
    if match is None:
        return None
    parts = match[1] or DEFAULT_NAMESPACE, match[2]
    if any(map(_is_wild, parts)):
        return None
    return _unquoted(parts[0]), _unquoted(parts[1])


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _is_wild(part: str) -> bool:
    return not part.startswith('"') and not set("*?").isdisjoint(part)


def _matcher(part: str) -> re.Pattern[str]:
    if part.startswith('"'):
        return re.compile(re.escape(_unquoted(part)))
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(c) or re.escape(c) for c in part), re.DOTALL)
