"""Random histories of one relation, and the table that Postgres would show at their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pyarrow as pa

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema import layout
from pgstream_dagster.schema.changes import COPY_ORDINAL, GAP_ORDINAL, Op, first_read_ordinal
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from tests.support.reference.change import Change, Position

EPOCH, RELATION_ID = 3, 16384
VALUES = (None, "", "0", "a", "b", "\N{SNOWMAN}", "x" * 40)


def text(name: str, attnum: int, missing: str | None = None) -> Column:
    return Column(name, attnum, type_oid=25, type_name="text", missing=missing)


def schema(*columns: Column, key: Sequence[str] = ("id",)) -> TableSchema:
    identity = ReplicaIdentity.DEFAULT if key else ReplicaIdentity.FULL
    return TableSchema(EPOCH, RELATION_ID, "public", "t", identity, columns, tuple(key))


def change(op: Op, commit_lsn: int, ordinal: int = 0, **values: object) -> Change:
    """One change of the relation at a position; the rest by name."""
    fields = {"namespace": "public", "relation": "t", "relation_id": RELATION_ID, **values}
    position = Position(EPOCH, Lsn(commit_lsn), ordinal)
    return Change(position, Lsn(commit_lsn + 5), op, **fields)  # pyright: ignore[reportArgumentType]


def table(changes: Sequence[Change]) -> pa.Table:
    """The changes with the columns of the change log, in the order given."""
    images = {name: [getattr(c, name) for c in changes] for name in ("before", "after")}
    columns = {
        "epoch": [c.position.epoch for c in changes],
        "commit_lsn": [int(c.position.commit_lsn) for c in changes],
        "ordinal": [c.position.ordinal for c in changes],
        "end_lsn": [int(c.end_lsn) for c in changes],
        "op": [c.op.value for c in changes],
        **{
            name: [getattr(c, name) for c in changes]
            for name in ("namespace", "relation", "relation_id", "schema_id", "payload", "xid")
        },
        **{
            name: [None if (key := getattr(c, name)) is None else list(key) for c in changes]
            for name in ("key", "old_key")
        },
        **{
            name: [None if image is None else list(image.items()) for image in values]
            for name, values in images.items()
        },
    }
    nulls = [None] * len(changes)
    return pa.table(
        {name: columns.get(name, nulls) for name in layout.CHANGES.names}, layout.CHANGES
    )


@dataclass
class History:
    """
    Plays a table: every step changes its rows and writes what the change log would hold.

    `rows` are values by attnum, in one list of rows; a keyed table's keys are unique in it. With
    `is_sound` false it also writes changes that no Postgres sends (updates of rows that are not
    there, half images without their row); then `rows` means nothing.
    """

    random: Random
    is_keyed: bool = True
    is_sound: bool = True
    key_space: int = 30
    changes: list[Change] = field(default_factory=list)
    versions: list[TableSchema] = field(default_factory=list)
    rows: list[dict[int, str | None]] = field(default_factory=list)
    is_open: bool = True
    commit_lsn: int = 100
    ordinal: int = 0

    def __post_init__(self) -> None:
        columns = (text("id", 1), text("b", 2), text("c", 3), text("d", 4))
        self.versions.append(schema(*columns, key=("id",) if self.is_keyed else ()))

    @property
    def newest(self) -> TableSchema:
        return self.versions[-1]

    def play(self, steps: int) -> History:
        """So many random steps, markers and layout changes being rarer than rows."""
        markers = [self.copy, self.gap, self.truncate]
        layouts = [self.add, self.drop, self.rename]
        common = [self.insert, self.update, self.delete, self.insert, self.update]
        if self.is_keyed:
            common += [self.move, self.move, self.swap, self.insert_again]
        if not self.is_sound:
            common.append(self.stray)
        for _ in range(steps):
            lot = self.random.random()
            steps_now = markers if lot < 0.003 else layouts if lot < 0.02 else common
            self.random.choice(steps_now)()
            if self.random.random() < 0.4:
                self.begin()
        return self

    def shown(self) -> list[dict[str, str | None]]:
        """The table as a SELECT shows it."""
        return [self.image(row) for row in self.rows]

    # --- changes of rows

    def insert(self) -> None:
        row = self.fresh_row()
        if row is not None:
            self.rows.append(row)
            self.write(Op.INSERT, row, after=self.image(row))

    def delete(self) -> None:
        if self.rows:
            row = self.rows.pop(self.random.randrange(len(self.rows)))
            self.write(Op.DELETE, row, before=self.old_image(row))

    def update(self) -> None:
        if self.rows:
            self.change_row(self.random.choice(self.rows), key=None)

    def move(self) -> None:
        free = self.free_keys()
        if self.rows and free:
            self.change_row(self.random.choice(self.rows), key=self.random.choice(free))

    def swap(self) -> None:
        """Two rows change places through a third key, in one transaction."""
        free = self.free_keys()
        if len(self.rows) > 1 and free:
            first_row, second_row = self.random.sample(self.rows, 2)
            first, second = first_row[1], second_row[1]
            for row, key in ((first_row, free[0]), (second_row, first), (first_row, second)):
                self.change_row(row, key=key)

    def insert_again(self) -> None:
        """A row is deleted and another one takes its key, in one transaction."""
        if self.rows:
            old = self.rows.pop(self.random.randrange(len(self.rows)))
            self.write(Op.DELETE, old, before=self.old_image(old))
            row = self.random_row() | {1: old[1]}
            self.rows.append(row)
            self.write(Op.INSERT, row, after=self.image(row))

    def stray(self) -> None:
        """An update, whole or in part, moving or not, of a row that may not be there."""
        row = self.random_row()
        old_key = (str(self.random.randrange(self.key_space)),)
        moves = self.is_keyed and self.random.random() < 0.5 and old_key != (row[1],)
        after = self.image(row)
        if self.random.random() < 0.7:
            del after[self.random.choice([name for name in after if name not in self.newest.key])]
        before = None if self.is_keyed or self.random.random() < 0.5 else self.image(row)
        self.write(Op.UPDATE, row, after=after, before=before, old_key=old_key if moves else None)

    def change_row(self, row: dict[int, str | None], *, key: str | None) -> None:
        old = dict(row)
        changed = [n for n in self.attnums() if n not in self.key_attnums()]
        kept = set(self.random.sample(changed, self.random.randrange(len(changed) + 1)))
        if self.random.random() < 0.4 or not self.is_keyed:
            kept = set()
        row |= {n: self.random.choice(VALUES) for n in changed if n not in kept}
        if key is not None:
            row[1] = key
        names = {c.name for c in self.newest.columns if c.attnum not in kept}
        after = {name: value for name, value in self.image(row).items() if name in names}
        self.write(
            Op.UPDATE,
            row,
            after=after,
            before=None if self.is_keyed else self.image(old),
            old_key=(old[1],) if key is not None else None,
        )

    # --- markers

    def copy(self) -> None:
        """The table is copied: at a point of its own, or where the last transaction commits."""
        at = self.commit_lsn if self.random.random() < 0.5 and self.ordinal == 0 else None
        if at is None:
            self.begin()
        if self.random.random() < 0.3:
            self.changes.append(change(Op.GAP, self.commit_lsn, GAP_ORDINAL))
        self.changes.append(change(Op.COPY, self.commit_lsn, COPY_ORDINAL, payload="again"))
        for number, row in enumerate(self.rows):
            ordinal = first_read_ordinal(number % 3) + number
            self.changes.append(self.as_change(Op.READ, ordinal, row, after=self.image(row)))
        self.is_open = True

    def gap(self) -> None:
        self.begin()
        self.changes.append(change(Op.GAP, self.commit_lsn, GAP_ORDINAL))
        self.is_open = False

    def truncate(self) -> None:
        self.rows.clear()
        self.changes.append(change(Op.TRUNCATE, self.commit_lsn, self.next_ordinal()))

    # --- changes of the layout

    def add(self) -> None:
        attnum = 1 + max(c.attnum for version in self.versions for c in version.columns)
        name = self.fresh_name(self.random.choice("bcdefghijklmnop"))
        missing = self.random.choice((None, "", "default"))
        self.rows = [row | {attnum: missing} for row in self.rows]
        self.layout((*self.newest.columns, text(name, attnum, missing)))

    def drop(self) -> None:
        able = [c for c in self.newest.columns if c.attnum not in self.key_attnums()]
        if len(able) > 1:
            gone = self.random.choice(able)
            self.layout(tuple(c for c in self.newest.columns if c is not gone))

    def rename(self) -> None:
        """One column gets another name, or two change theirs, the key's too."""
        columns = list(self.newest.columns)
        if len(columns) < 2:
            return
        left, right = self.random.sample(range(len(columns)), 2)
        old, new = columns[left].name, columns[right].name
        if self.random.random() < 0.5:
            new = self.fresh_name(old)
        else:
            columns[right] = replace(columns[right], name=old)
        columns[left] = replace(columns[left], name=new)
        self.layout(tuple(columns))

    def fresh_name(self, name: str) -> str:
        """The name, or a longer one, that no column has now."""
        used = {column.name for column in self.newest.columns}
        while name in used:
            name += "_"
        return name

    def layout(self, columns: tuple[Column, ...]) -> None:
        named = {column.attnum: column.name for column in columns}
        key = tuple(named[attnum] for attnum in self.key_attnums())
        self.versions.append(replace(self.newest, columns=columns, key=key))
        ordinal = self.next_ordinal()
        self.changes.append(change(Op.DDL, self.commit_lsn, ordinal, payload="{}"))

    # --- parts

    def begin(self) -> None:
        self.commit_lsn += self.random.randrange(1, 20)
        self.ordinal = 0

    def next_ordinal(self) -> int:
        self.ordinal += 1
        return self.ordinal - 1

    def attnums(self) -> list[int]:
        return [column.attnum for column in self.newest.columns]

    def key_attnums(self) -> tuple[int, ...]:
        return self.newest.key_attnums

    def free_keys(self) -> list[str]:
        taken = {row[1] for row in self.rows}
        return [str(n) for n in range(self.key_space) if str(n) not in taken]

    def random_row(self) -> dict[int, str | None]:
        row = {attnum: self.random.choice(VALUES) for attnum in self.attnums()}
        return row | {1: str(self.random.randrange(self.key_space))} if self.is_keyed else row

    def fresh_row(self) -> dict[int, str | None] | None:
        if not self.is_keyed:
            if self.rows and self.random.random() < 0.5:
                return dict(self.random.choice(self.rows))
            return self.random_row()
        free = self.free_keys()
        return self.random_row() | {1: self.random.choice(free)} if free else None

    def image(self, row: dict[int, str | None]) -> dict[str, str | None]:
        return {column.name: row[column.attnum] for column in self.newest.columns}

    def old_image(self, row: dict[int, str | None]) -> dict[str, str | None]:
        image = self.image(row)
        return {name: image[name] for name in self.newest.key} if self.is_keyed else image

    def write(self, op: Op, row: dict[int, str | None], **values: object) -> None:
        self.changes.append(self.as_change(op, self.next_ordinal(), row, **values))

    def as_change(
        self, op: Op, ordinal: int, row: dict[int, str | None], **values: object
    ) -> Change:
        key = (row[1],) if self.is_keyed else None
        schema_id = self.newest.schema_id
        return change(op, self.commit_lsn, ordinal, key=key, schema_id=schema_id, **values)
