"""Versions of what the catalog says of a table: pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Versions:
    """
    Which changes of a table are sent, and how its values are written; see `source/versions`.

    `listing` is how the publication includes the table, `edges` since when each of its partitions
    is one, `types` what the text of its values depends on. All are versions of rows of the catalog:
    what changed and changed back has another version. `late_columns` are keys of `types`: columns
    whose text may have changed since they were made.
    """

    listing: tuple[int, ...] = ()
    edges: Mapping[int, int] = field(default_factory=dict[int, int])
    types: Mapping[str, int] = field(default_factory=dict[str, int])
    late_columns: tuple[str, ...] = ()
