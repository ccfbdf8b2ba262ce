"""
Row images, column-wise: tuples of many Insert, Update and Delete messages in, keys and maps out.

Pure. What Postgres did not send stays missing: an unchanged TOASTed value (`u`) is completed from
the old tuple where that carries it and left out otherwise, and the NULLs that fill the non-key
columns of a key tuple (`K`) are dropped. So are those of an old tuple (`O`) whose relation has not
identity FULL: a leaf that logs its key only, sent under a root that is FULL (`partitions`).

Source:
    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (TupleData)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.schema.table import ReplicaIdentity, TableSchema
from pgstream_dagster.wire.ragged import (
    Bools,
    Fields,
    Ints,
    Octets,
    image_column,
    key_column,
    payload_column,
    spread,
    starts_of,
    walk,
)

INSERT, UPDATE, DELETE = b"IUD"
NEW, KEY_ONLY, OLD = b"NKO"
_NULL, _UNSENT, _TEXT = b"nut"  # binary values (b) are sent to who asks for them; we never do

_HEAD: Final = 5  # kind byte and Int32 length
_NAMES: Final = {INSERT: "Insert", UPDATE: "Update", DELETE: "Delete"}

_HAS_TAG: Final = np.zeros((256, 256), dtype=np.bool_)
_HAS_TAG[INSERT, [NEW]] = True
_HAS_TAG[UPDATE, [KEY_ONLY, OLD, NEW]] = True
_HAS_TAG[DELETE, [KEY_ONLY, OLD]] = True
_IS_VALUE: Final = np.zeros(256, dtype=np.bool_)
_IS_VALUE[[_NULL, _UNSENT, _TEXT]] = True


class Layouts:
    """Some schema versions as flat arrays: version v has columns `first[v]:first[v + 1]`."""

    def __init__(self, schemas: Sequence[TableSchema]) -> None:
        self.schemas = schemas
        self.widths = np.array([len(schema.columns) for schema in schemas], dtype=np.int64)
        self.first = starts_of(self.widths)
        self.names = pa.array(
            [column.name for schema in schemas for column in schema.columns], pa.string()
        )
        places = [_key_places(schema) for schema in schemas]
        self.key_widths = np.array([len(place) for place in places], dtype=np.int64)
        self.first_key = starts_of(self.key_widths)
        self.key_places = np.array([at for place in places for at in place], dtype=np.int64)
        self.is_full = np.array(
            [schema.identity is ReplicaIdentity.FULL for schema in schemas], dtype=np.bool_
        )
        self.in_key = np.zeros(len(self.names), dtype=np.bool_)
        self.in_key[np.repeat(self.first[:-1], self.key_widths) + self.key_places] = True


def _key_places(schema: TableSchema) -> list[int]:
    place = {column.name: at for at, column in enumerate(schema.columns)}
    return [place[name] for name in schema.key]


class RowMessages(NamedTuple):
    """
    Insert, Update and Delete messages of one buffer, in order; one entry of each array per message.

    Shape:
        message: its index in the batch, for errors.
        kind, tag: the message's kind byte, and the byte that says what its first tuple is.
        tuples, ends: where the first tuple begins, and where the message ends.
        version: of the relation, in `Layouts`.
    """

    message: Ints
    kind: npt.NDArray[np.uint8]
    tag: npt.NDArray[np.uint8]
    tuples: Ints
    ends: Ints
    version: Ints

    def between(self, begin: int, end: int) -> RowMessages:
        """The messages from `begin` up to `end`."""
        return RowMessages._make(values[begin:end] for values in self)

    def has_two(self) -> npt.NDArray[np.bool_]:
        """Whether an old tuple precedes the new one."""
        return (self.kind == UPDATE) & (self.tag != NEW)


class Images(NamedTuple):
    """Columns of the change log."""

    key: pa.Array
    old_key: pa.Array
    before: pa.Array
    after: pa.Array
    payload: pa.Array  # says which of the row's columns have escaped values


def slot_counts(rows: RowMessages, layouts: Layouts) -> Ints:
    """Slots that each message's fields take: one per field, one behind the last, per tuple."""
    return (layouts.widths[rows.version] + 1) * (1 + rows.has_two())


def row_images(
    octets: Octets, rows: RowMessages, layouts: Layouts, places: Ints, row_count: int
) -> tuple[Images, dict[int, str]]:
    """
    Keys and images of `rows`, each at its place in columns of `row_count` rows, null elsewhere.

    And the places of INSERTs that came without a value, each with the name of such a column.

    Raises:
        ProtocolError: a tuple that is damaged, or has not the columns of its version.
    """
    tuples = _Tuples(octets, rows, layouts)
    after, before = tuples.after(), tuples.before()
    keyed = np.flatnonzero(layouts.key_widths[rows.version] > 0)
    key = tuples.key(keyed, np.where(rows.kind == DELETE, tuples.old, tuples.new))
    old_key = tuples.changed_key(key)

    def placed(fields: _RowFields) -> tuple[Ints, Bools]:
        counts, present = np.zeros(row_count, np.int64), np.zeros(row_count, np.bool_)
        counts[places[fields.rows]] = fields.counts
        present[places[fields.rows]] = True
        return counts, present

    images = Images(
        key_column(tuples.texts(key), *placed(key)),
        key_column(tuples.texts(old_key), *placed(old_key)),
        image_column(tuples.names(before), tuples.texts(before), *placed(before)),
        image_column(tuples.names(after), tuples.texts(after), *placed(after)),
        payload_column({int(places[row]): names for row, names in tuples.escaped()}, row_count),
    )
    return images, {int(places[row]): name for row, name in tuples.unsent.items()}


class _RowFields(NamedTuple):
    """Some fields of some rows: `counts[i]` of `rows[i]`; `columns` as in `Layouts`, end to end."""

    rows: Ints
    counts: Ints
    slots: Ints
    columns: Ints


_NOTHING: Final = np.zeros(0, dtype=np.int64)
_NO_FIELDS: Final = _RowFields(_NOTHING, _NOTHING, _NOTHING, _NOTHING)
"""What inserts alone have of old images: their batches are small, often, and every call counts."""


class _Tuples:
    """
    The fields of every tuple, and which slot carries which value.

    Shape:
        old, new: slot of the first field of a row's old and new tuple; without meaning where the
            message has no such tuple.
    """

    def __init__(self, octets: Octets, rows: RowMessages, layouts: Layouts) -> None:
        self._rows, self._layouts = rows, layouts
        self._widths = layouts.widths[rows.version]
        self._refuse(~_HAS_TAG[rows.kind, rows.tag], "an unknown kind of tuple")
        counts = slot_counts(rows, layouts)
        self.old = starts_of(counts)[:-1]
        self.new = self.old + np.where(rows.has_two(), self._widths + 1, 0)
        positions = self._positions(octets, int(counts.sum()))
        self._fields = Fields(octets.data, positions, _HEAD)
        self._kinds = octets.u1[positions]
        self._kinds[self.old + self._widths] = _NULL  # slots behind a last field hold no field
        self._kinds[self.new + self._widths] = _NULL
        self._require_text()
        self.unsent: dict[int, str] = {}
        """Rows that are INSERTs without the value of the column."""
        self._carrier = self._completed()

    def _positions(self, octets: Octets, slot_count: int) -> Ints:
        rows, widths = self._rows, self._widths
        positions = np.zeros(slot_count, dtype=np.int64)

        def field_bytes(at: Ints) -> Ints:
            return np.where(octets.u1[at] == _TEXT, octets.u4(at + 1) + _HEAD, 1)

        def walked(tuples: Ints, at: Ints, slots: Ints) -> Ints:
            """Note the fields of the tuples of rows `at`; where they end."""
            wrong = octets.u2(tuples) != widths[at]
            self._refuse(wrong, "its column count is not its relation's", at)
            try:
                walk(field_bytes, tuples, widths[at], slots, positions)
            except IndexError:
                raise ProtocolError("a tuple runs past the end of its batch") from None
            return positions[slots + widths[at]]

        every = np.arange(len(rows.tuples))
        ends = walked(rows.tuples, every, self.old)
        two = np.flatnonzero(rows.has_two())
        if len(two):
            second = ends[two]
            self._refuse(second + 3 > rows.ends[two], "it has no new tuple", two)
            self._refuse(octets.u1[second] != NEW, "its second tuple is not a new one", two)
            ends[two] = walked(second + 1, two, self.new[two])
        self._refuse(ends != rows.ends, "its tuples do not end where the message ends")
        return positions

    def _require_text(self) -> None:
        if _IS_VALUE[self._kinds].all():
            return
        slot = int(np.flatnonzero(~_IS_VALUE[self._kinds])[0])
        row = int(np.searchsorted(self.old, slot, side="right")) - 1
        raise self._damaged(row, f"an unknown value (kind {int(self._kinds[slot]):#04x})")

    def _completed(self) -> Ints | None:
        """
        Slot -> the slot that carries its value; `None`: each its own.

        Another one for an unsent value whose old tuple has it: under FULL, and TOASTed keys.
        """
        unsent = np.flatnonzero(self._kinds == _UNSENT)
        if not len(unsent):
            return None
        row = np.searchsorted(self.old, unsent, side="right") - 1
        column = unsent - self.new[row]
        is_new = column >= 0  # in a message of one tuple it may be the old one, which carries none
        unsent, row, column = unsent[is_new], row[is_new], column[is_new]
        if not len(unsent):
            return None
        self._note_incomplete_inserts(row, column)
        source = self.old[row] + column
        layout_column = self._layouts.first[self._rows.version[row]] + column
        carries = (self._kinds[source] != _UNSENT) & self._is_carried(row, layout_column)
        carrier = np.arange(len(self._kinds))
        carrier[unsent[carries]] = source[carries]
        return carrier

    def _note_incomplete_inserts(self, row: Ints, column: Ints) -> None:
        """Postgres sends them only for an UPDATE that a row filter turned into an INSERT."""
        is_insert = self._rows.kind[row] == INSERT
        for at, place in zip(row[is_insert].tolist(), column[is_insert].tolist(), strict=True):
            self.unsent[at] = self._schema(at).columns[place].name

    def _is_carried(self, row: Ints, layout_column: Ints) -> Bools:
        """Whether the value of a column in a row's old tuple is the row's, and no filling."""
        tag = self._rows.tag[row]
        has_old = (tag == OLD) | (tag == KEY_ONLY)
        return self._is_whole(row) | (has_old & self._layouts.in_key[layout_column])

    def _is_whole(self, row: Ints) -> Bools:
        """Whether the old tuple of a row is the whole row."""
        return (self._rows.tag[row] == OLD) & self._layouts.is_full[self._rows.version[row]]

    def after(self) -> _RowFields:
        """The fields of the new tuples, completed."""
        return self._sent(self._fields_of(np.flatnonzero(self._rows.kind != DELETE), self.new))

    def before(self) -> _RowFields:
        """The fields of the old tuples; of a key tuple the key's columns only."""
        at = np.flatnonzero(self._rows.tag != NEW)
        if not len(at):
            return _NO_FIELDS
        fields = self._fields_of(at, self.old)
        if self._is_whole(at).all():
            return self._sent(fields)
        return self._sent(fields, self._is_carried(np.repeat(at, fields.counts), fields.columns))

    def _fields_of(self, at: Ints, first: Ints) -> _RowFields:
        """Every field of the tuples at slots `first` of rows `at`."""
        counts = self._widths[at]
        slots = self._carried(spread(first[at], counts))
        return _RowFields(
            at, counts, slots, spread(self._layouts.first[self._rows.version[at]], counts)
        )

    def _sent(self, fields: _RowFields, means: Bools | None = None) -> _RowFields:
        """The fields of `fields` that were sent and, where `means` is given, mean something."""
        kept = self._kinds[fields.slots] != _UNSENT
        if means is not None:
            kept &= means
        if kept.all():
            return fields
        ends = starts_of(kept.astype(np.int64))[starts_of(fields.counts)]
        return _RowFields(fields.rows, np.diff(ends), fields.slots[kept], fields.columns[kept])

    def key(self, at: Ints, first: Ints) -> _RowFields:
        """The key's values in the tuples at slots `first` of rows `at`."""
        version = self._rows.version[at]
        counts = self._layouts.key_widths[version]
        places = self._layouts.key_places[spread(self._layouts.first_key[version], counts)]
        slots = self._carried(np.repeat(first[at], counts) + places)
        unsent = self._kinds[slots] == _UNSENT
        for row in np.repeat(at, counts)[unsent].tolist():
            if row not in self.unsent and self._schema(row).identity is not ReplicaIdentity.NOTHING:
                raise self._damaged(row, "a key value is not sent")
        return _RowFields(
            at, counts, slots, np.repeat(self._layouts.first[version], counts) + places
        )

    def changed_key(self, key: _RowFields) -> _RowFields:
        """The old key of each row of `key` whose old tuple has other key values than the new."""
        two = np.flatnonzero(self._rows.has_two()[key.rows])
        if not len(two):
            return _NO_FIELDS
        old = self.key(key.rows[two], self.old)
        new_slots = key.slots[spread(starts_of(key.counts)[two], old.counts)]
        differs = ~self._equal(old.slots, new_slots)
        begins = starts_of(old.counts)[:-1]
        changed = np.logical_or.reduceat(differs, begins)
        kept = np.repeat(changed, old.counts)
        return _RowFields(
            old.rows[changed], old.counts[changed], old.slots[kept], old.columns[kept]
        )

    def _equal(self, left: Ints, right: Ints) -> Bools:
        """Whether two fields are equal: both NULL, or the same text."""
        equal = pc.call_function("equal", [self._fields.octets(left), self._fields.octets(right)])
        return equal.to_numpy(zero_copy_only=False) & (self._kinds[left] == self._kinds[right])

    def _carried(self, slots: Ints) -> Ints:
        return slots if self._carrier is None else self._carrier[slots]

    def names(self, fields: _RowFields) -> pa.Array:
        """The column names of `fields`."""
        return self._layouts.names.take(pa.array(fields.columns))

    def texts(self, fields: _RowFields) -> pa.Array:
        """The values of `fields`."""
        return self._fields.texts(fields.slots, self._kinds[fields.slots] == _NULL)

    def escaped(self) -> Iterator[tuple[int, set[str]]]:
        """Rows with the columns of theirs whose values were escaped."""
        columns: dict[int, set[str]] = {}
        for slot in self._fields.escaped:
            row = int(np.searchsorted(self.old, slot, side="right")) - 1
            first = self.new[row] if slot >= self.new[row] else self.old[row]
            name = self._schema(row).columns[slot - int(first)].name
            columns.setdefault(row, set()).add(name)
        yield from columns.items()

    def _refuse(self, wrong: Bools, fact: str, at: Ints | None = None) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise self._damaged(row if at is None else int(at[row]), fact)

    def _damaged(self, row: int, fact: str) -> ProtocolError:
        name, table = _NAMES[int(self._rows.kind[row])], self._schema(row).full_name
        index = int(self._rows.message[row])
        return ProtocolError(f"{name} of {table!r} (message {index} of its batch): {fact}")

    def _schema(self, row: int) -> TableSchema:
        return self._layouts.schemas[int(self._rows.version[row])]
