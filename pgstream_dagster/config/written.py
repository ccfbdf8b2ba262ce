"""Parts of the pipeline file as it is written, whatever it has in their place."""

from __future__ import annotations

from typing import Any


def keys_of(value: Any) -> dict[str, Any]:
    """A section; empty if it is none."""
    return value if isinstance(value, dict) else {}


def items_of(value: Any) -> list[Any]:
    """A list; empty if it is none."""
    return value if isinstance(value, list) else []
