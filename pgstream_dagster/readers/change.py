"""Batches of changes, as sinks receive them, and the change that they are made of. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pgstream_dagster.schema.change import Change, Image, Key, Place, changes_of

__all__ = ["Change", "ChangeBatch", "Image", "Key", "Place", "changes_of"]


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """
    Changes in order of their positions, as one call delivers them.

    `cursor` is the reader's progress once the batch is delivered: a sink whose target has
    transactions stores it with the changes. `ends_transaction`: whether the last change is the last
    one of its transaction that this reader receives; a large transaction comes in several batches.
    Copied rows belong to no transaction: the last batch of a copy has it set. `comes_late`: its
    changes may be older than others that were delivered, and of tables that have ended since: those
    of a copy that is taken in, and everything after a reset.

    A sink that delivers a batch by several calls calls `require` before each, with the seconds that
    the call may take: it raises once another process may deliver.
    """

    changes: list[Change] = field(default_factory=list[Change])
    cursor: str = ""
    ends_transaction: bool = True
    comes_late: bool = False
    require: Callable[[float], None] = field(default=lambda _seconds: None, compare=False)
