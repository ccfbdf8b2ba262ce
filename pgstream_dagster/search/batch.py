"""
What a batch of the log means for the documents of one relation. No I/O.

This is the fold of a batch without the rows before it: per document, the last state that the batch
gives it. An update that leaves columns out changes an existing document, under its own id or, if
its key changed, under its former id; it is completed from that document before it is written. A
generation that applies one batch after the other has what `changelog.fold` gives for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.search.ids import Key, document_id

Image: TypeAlias = Mapping[int, "str | None"]
"""Attnum to Postgres text; `None` is NULL, a missing attnum was not sent or is younger."""

COLUMNS: Final = (
    *("commit_lsn", "ordinal", "op", "schema_id", "key", "old_key", "before", "after"),
)
"""The columns of the change log that a batch is folded from."""


@dataclass(frozen=True, slots=True)
class FullRow:
    """A row with all columns of its schema."""

    image: Image


@dataclass(frozen=True, slots=True)
class PartialRow:
    """The changed columns of a row; the others are in the document `origin`."""

    origin: str
    image: Image


@dataclass(frozen=True, slots=True)
class Deleted:
    """No row."""


State: TypeAlias = FullRow | PartialRow | Deleted


class Outcome(NamedTuple):
    """A document's state after the batch, and the position of the change that gave it."""

    state: State
    commit_lsn: Lsn
    ordinal: int
    key: Key


@dataclass(slots=True)
class Batch:
    """
    Documents to write, by id; `emptied_at`: every document is removed first, at that commit LSN.

    `gap_at` is the commit LSN of a gap: changes after it are left out. `schema_ids` are those of
    the changes, in order of first appearance.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    emptied_at: Lsn | None = None
    gap_at: Lsn | None = None
    schema_ids: dict[int, None] = field(default_factory=dict[int, None])


def fold(
    changes: pa.Table, schemas: Mapping[int, TableSchema], id_columns: Sequence[str] | None
) -> Batch:
    """
    What the changes of one relation, in order of position, mean for its documents.

    Shape:
        changes: landed changes, at least the columns `COLUMNS`.
        id_columns: make the ids of a relation without a key; `None`: the key does.
    """
    batch = Batch()
    for row in changes.select(list(COLUMNS)).to_pylist():
        match row["op"]:
            case Op.GAP.value:
                batch.gap_at = Lsn(row["commit_lsn"])
                break
            case Op.TRUNCATE.value:
                batch.emptied_at = Lsn(row["commit_lsn"])
                batch.outcomes.clear()
            case Op.INSERT.value | Op.UPDATE.value | Op.DELETE.value:
                batch.schema_ids.setdefault(row["schema_id"])
                _take(batch, row, schemas[row["schema_id"]], _keys(row, id_columns))
            case Op.DDL.value if row["schema_id"] is not None:
                batch.schema_ids.setdefault(row["schema_id"])  # the index follows it at once
            case _:  # means nothing for rows
                pass
    return batch


def _keys(
    row: Mapping[str, Any], id_columns: Sequence[str] | None
) -> tuple[Key | None, Key | None]:
    """The key of a change's row before and after it; `None`: there is no such row."""
    if id_columns is None:
        key = tuple(row["key"])
        return key if row["old_key"] is None else tuple(row["old_key"]), key
    return _values(row["before"], id_columns), _values(row["after"], id_columns)


def _values(image: Sequence[tuple[str, str | None]] | None, names: Sequence[str]) -> Key | None:
    if image is None:
        return None
    by_name = dict(image)
    return tuple(by_name[name] for name in names)


def _take(
    batch: Batch, row: Mapping[str, Any], schema: TableSchema, keys: tuple[Key | None, Key | None]
) -> None:
    """Lay one change of a row over what came before it."""
    (old, new), outcomes = keys, batch.outcomes
    old_id = None if old is None else document_id(old)
    if old is not None and old_id is not None and row["op"] == Op.DELETE.value:
        outcomes[old_id] = _outcome(Deleted(), row, old)
    if row["op"] == Op.DELETE.value:
        return
    if new is None:
        raise ValueError(f"an {row['op']} without its row")
    new_id, image = document_id(new), _by_attnum(row["after"], schema)
    state: State | None = FullRow(image)
    is_update = row["op"] == Op.UPDATE.value
    if is_update and len(image) < len(schema.columns):
        origin = new_id if old_id is None else old_id
        outcome = outcomes.get(origin)
        unseen: State = PartialRow(origin, {}) if batch.emptied_at is None else Deleted()
        state = _laid_over(unseen if outcome is None else outcome.state, image)
    if is_update and old is not None and old_id is not None and old_id != new_id:
        outcomes[old_id] = _outcome(Deleted(), row, old)
    if state is not None:
        outcomes[new_id] = _outcome(state, row, new)


def _laid_over(state: State, image: Image) -> State | None:
    """`None`: no row to change, which no sound log has; part of a row is worse than no row."""
    match state:
        case FullRow():
            return FullRow({**state.image, **image})
        case PartialRow():
            return PartialRow(state.origin, {**state.image, **image})
        case Deleted():
            return None


def _outcome(state: State, row: Mapping[str, Any], key: Key) -> Outcome:
    return Outcome(state, Lsn(row["commit_lsn"]), row["ordinal"], key)


def _by_attnum(image: Sequence[tuple[str, str | None]], schema: TableSchema) -> Image:
    attnums = schema.attnums
    return {attnums[name]: value for name, value in image}


def origins(batch: Batch) -> list[str]:
    """The documents that partial rows are completed from, each once."""
    states = (outcome.state for outcome in batch.outcomes.values())
    return list(dict.fromkeys(s.origin for s in states if isinstance(s, PartialRow)))
