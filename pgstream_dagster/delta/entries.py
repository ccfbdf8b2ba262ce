"""
The entries of a Delta log as text: their names, their content, and whether one is complete.

Pure. A power cut can leave a log's newest entry empty, cut off, or with blocks of zeros; Kernel
and Spark take an empty one, or one cut at the end of a line, for a commit that changed nothing.
So our commits state in `engineInfo` how many actions follow, and `parse` counts them.

Source:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md (Delta Log Entries, Actions)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

LOG_FOLDER: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"

_LOG_FILE: Final = re.compile(r"\.?(\d{20})\.(json|crc|checkpoint\.).*")
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:[^/]*\.)?parquet")
_PROMISE: Final = re.compile(r"pgstream-dagster (?:writer=(\w+) )?actions=(\d+)$")
_COUNTED: Final = frozenset({"add", "remove", "txn"})


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that an entry adds: its name relative to the table, bytes, Delta's statistics."""

    name: str
    size: int
    stats_json: str

    @property
    def statistics(self) -> dict[str, Any]:
        """Delta's, as they were written; none: empty."""
        return json.loads(self.stats_json or "{}")


@dataclass(frozen=True, slots=True)
class Entry:
    """
    What one commit did, as far as it is used here.

    `added` are the files that add data (`dataChange`); rewritten ones are not among them.
    """

    version: int
    transactions: Mapping[str, int]  # app id -> version
    added: tuple[AddedFile, ...]
    removed: frozenset[str]
    writer: str = ""  # the `DeltaTable` object that made it


def entry_name(version: int) -> str:
    """The file name of a log entry."""
    return f"{version:020d}.json"


def checksum_name(version: int) -> str:
    """The file name of Delta's checksum of a version."""
    return f"{version:020d}.crc"


def version_of_entry(name: str) -> int | None:
    """The version of a log entry's file name; `None` for any other name."""
    match = _ENTRY.fullmatch(name)
    return int(match[1]) if match else None


def version_of_checkpoint(name: str) -> int | None:
    """The version of the file name of a checkpoint or of its part; `None` for any other name."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def version_of_log_file(name: str) -> int | None:
    """The version of an entry, checksum or checkpoint, or of Hadoop's checksum file of one."""
    match = _LOG_FILE.fullmatch(name)
    return int(match[1]) if match and not name.endswith(".tmp") else None


def engine_info(actions: int, writer: str = "") -> str:
    """
    The `engineInfo` of our commits: it promises so many `add`, `remove` and `txn` actions.

    `writer` identifies the commit when the answer to it was lost.
    """
    return f"pgstream-dagster {f'writer={writer} ' if writer else ''}actions={actions}"


def parse(version: int, data: bytes) -> Entry | None:
    """
    The entry in these bytes, or `None` when they are not a complete one.

    Complete: at least one line, each a JSON object that ends with a newline, and as many actions as
    the entry itself promises (entries of other writers promise nothing).
    """
    actions = _actions(data)
    if actions is None:
        return None
    counted = sum(1 for kind, _ in actions if kind in _COUNTED)
    writer = ""
    for kind, action in actions:
        promise = _PROMISE.search(action.get("engineInfo", "")) if kind == "commitInfo" else None
        if promise and int(promise[2]) != counted:
            return None
        writer = (promise and promise[1]) or writer
    return Entry(
        version,
        transactions={txn["appId"]: txn["version"] for kind, txn in actions if kind == "txn"},
        added=tuple(
            added_file(add) for kind, add in actions if kind == "add" and add["dataChange"]
        ),
        removed=frozenset(unquote(remove["path"]) for kind, remove in actions if kind == "remove"),
        writer=writer,
    )


def added_file(add: Mapping[str, Any]) -> AddedFile:
    """The file of an `add` action."""
    return AddedFile(unquote(add["path"]), add["size"], add.get("stats") or "")


def _actions(data: bytes) -> list[tuple[str, dict[str, Any]]] | None:
    if not data.endswith(b"\n"):
        return None
    try:
        lines = [json.loads(line) for line in data.splitlines()]
    except ValueError:
        return None
    if not all(isinstance(line, dict) for line in lines):
        return None
    return [(kind, action) for line in lines for kind, action in line.items() if action is not None]
