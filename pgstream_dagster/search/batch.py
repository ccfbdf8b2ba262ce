"""
What a batch of the log means to the documents of one relation. No I/O.

The fold of a batch whose beginning is not in hand: per document the last state that the batch
gives it. An update that leaves columns out changes a document that is there, under its own id or,
when its key moved, under the one it had; it is completed from that document before it is written.
A generation that applies one batch after the other has what `changelog.fold` says of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.search.ids import document_id

Image: TypeAlias = Mapping[int, "str | None"]
"""Attnum to Postgres text; `None` is NULL, a missing attnum was not sent or is younger."""

COLUMNS: Final = (
    *("commit_lsn", "ordinal", "op", "schema_id", "key", "old_key", "before", "after"),
)
"""Of the change log, what a batch is folded from."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A row, all columns of its schema."""

    image: Image


@dataclass(frozen=True, slots=True)
class Rest:
    """What changed of a row; the rest is in the document `origin`."""

    origin: str
    image: Image


@dataclass(frozen=True, slots=True)
class Gone:
    """No row."""


State: TypeAlias = Whole | Rest | Gone


class Outcome(NamedTuple):
    """A document's state after the batch, and the last change that gave it."""

    state: State
    commit_lsn: int
    ordinal: int
    key: tuple[str | None, ...]


@dataclass(slots=True)
class Batch:
    """
    Documents to write, by id; `emptied_at`: every document is removed first, at that commit LSN.

    `gap_at` is the commit LSN of a gap: what follows it was left out. `schema_ids` are those of the
    changes in order of their first.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    emptied_at: int | None = None
    gap_at: int | None = None
    schema_ids: dict[int, None] = field(default_factory=dict[int, None])


def fold(
    changes: pa.Table, schemas: Mapping[int, TableSchema], id_columns: Sequence[str] | None
) -> Batch:
    """
    What the changes of one relation, in order of position, mean to its documents.

    Shape:
        changes: landed changes, at least the columns `COLUMNS`.
        id_columns: make the ids of a relation without a key; `None`: the key does.
    """
    identify = _by_key if id_columns is None else _by_columns(id_columns)
    batch = Batch()
    for row in changes.select(list(COLUMNS)).to_pylist():
        match row["op"]:
            case Op.GAP.value:
                batch.gap_at = row["commit_lsn"]
                break
            case Op.TRUNCATE.value:
                batch.emptied_at = row["commit_lsn"]
                batch.outcomes.clear()
            case Op.INSERT.value | Op.UPDATE.value | Op.DELETE.value:
                batch.schema_ids.setdefault(row["schema_id"])
                _take(batch, row, schemas[row["schema_id"]], identify)
            case _:  # tells a reader of rows nothing
                pass
    return batch


class _Ids(NamedTuple):
    """Where a change finds its row and where it leaves it, each as id and key values."""

    old: tuple[str | None, ...] | None
    new: tuple[str | None, ...] | None


_Identify: TypeAlias = Callable[[Mapping[str, Any]], _Ids]


def _by_key(row: Mapping[str, Any]) -> _Ids:
    key = tuple(row["key"])
    old = key if row["old_key"] is None else tuple(row["old_key"])
    return _Ids(old, key)


def _by_columns(names: Sequence[str]) -> _Identify:
    def values(image: Sequence[tuple[str, str | None]] | None) -> tuple[str | None, ...] | None:
        if image is None:
            return None
        said = dict(image)
        return tuple(said[name] for name in names)

    def identify(row: Mapping[str, Any]) -> _Ids:
        return _Ids(values(row["before"]), values(row["after"]))

    return identify


def _take(batch: Batch, row: Mapping[str, Any], schema: TableSchema, identify: _Identify) -> None:
    """One change of a row, laid over what came before it."""
    ids, outcomes = identify(row), batch.outcomes
    before = None if ids.old is None else document_id(ids.old)
    if row["op"] == Op.DELETE.value:
        if ids.old is not None and before is not None:
            outcomes[before] = _outcome(Gone(), row, ids.old)
        return
    if ids.new is None:
        raise ValueError(f"an {row['op']} without its row")
    here, image = document_id(ids.new), _by_attnum(row["after"], schema)
    state: State | None = Whole(image)
    if row["op"] == Op.UPDATE.value and len(image) < len(schema.columns):
        origin = here if before is None else before
        unseen: State = Rest(origin, {}) if batch.emptied_at is None else Gone()
        known = outcomes.get(origin)
        state = _laid_over(unseen if known is None else known.state, image)
    if before is not None and before != here and row["op"] == Op.UPDATE.value and ids.old:
        outcomes[before] = _outcome(Gone(), row, ids.old)
    if state is not None:
        outcomes[here] = _outcome(state, row, ids.new)


def _laid_over(state: State, image: Image) -> State | None:
    """`None`: there is no row to change, which no sound log has; half a row is worse than none."""
    match state:
        case Whole():
            return Whole({**state.image, **image})
        case Rest():
            return Rest(state.origin, {**state.image, **image})
        case Gone():
            return None


def _outcome(state: State, row: Mapping[str, Any], key: tuple[str | None, ...]) -> Outcome:
    return Outcome(state, row["commit_lsn"], row["ordinal"], key)


def _by_attnum(image: Sequence[tuple[str, str | None]], schema: TableSchema) -> Image:
    attnums = schema.attnums
    return {attnums[name]: value for name, value in image}


def origins(batch: Batch) -> list[str]:
    """The documents that outcomes are completed from, each once."""
    named = (o.state.origin for o in batch.outcomes.values() if isinstance(o.state, Rest))
    return list(dict.fromkeys(named))
