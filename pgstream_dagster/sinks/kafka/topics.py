"""The names of topics, from a template. Pure."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

MAX_TOPIC: Final = 249
"""Characters that Kafka takes in a topic's name."""

_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]")
"""In a name. A dot separates the names of a template, so one in a name would be ambiguous."""


@lru_cache(maxsize=20_000)
def topic(template: str, pipeline: str, namespace: str, relation: str) -> str:
    """
    The topic of a relation.

    What Kafka takes in no topic becomes `_`, and a hash of the name is appended, so that two
    relations share no topic unless the template says so.
    """
    names = {"pipeline": pipeline, "namespace": namespace, "relation": relation}
    used = {name: value for name, value in names.items() if f"{{{name}}}" in template}
    safe = {name: _REFUSED.sub("_", value) for name, value in used.items()}
    result = template.format(**safe)
    if safe == used and len(result) <= MAX_TOPIC:
        return result
    digest = hashlib.sha256("\0".join(used.values()).encode()).hexdigest()[:8]
    return f"{result[: MAX_TOPIC - len(digest) - 1]}-{digest}"
