r"""
The id of a row's document, from the values of its key. Pure; `ids_spark` gives the same.

One value is the id itself. Several are joined by `|`, with `|` and `\` in them escaped by a `\`;
a NULL among them is `\N`. An id that would be empty, longer than 512 bytes, or that begins with
`sha256:` becomes `sha256:` and its hexadecimal SHA-256; so an id with this prefix is always a
hash. A single NULL is `sha256:null`. So no two keys with the same number of values share an id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, TypeAlias

Key: TypeAlias = tuple[str | None, ...]
"""The values of a row's key, as text."""

MAX_BYTES: Final = 512
"""The longest id, in UTF-8: the engines refuse longer ones."""

HASHED: Final = "sha256:"
OF_NULL: Final = f"{HASHED}null"


def document_id(key: Sequence[str | None]) -> str:
    """The id of the row with this key."""
    if len(key) == 1:
        if key[0] is None:
            return OF_NULL
        joined = key[0]
    else:
        joined = "|".join(map(_escaped, key))
    encoded = joined.encode()
    if 0 < len(encoded) <= MAX_BYTES and not joined.startswith(HASHED):
        return joined
    return HASHED + hashlib.sha256(encoded).hexdigest()


def _escaped(value: str | None) -> str:
    return r"\N" if value is None else value.replace("\\", r"\\").replace("|", r"\|")
