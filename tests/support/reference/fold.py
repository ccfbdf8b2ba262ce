"""The fold over `Change` records in plain Python: obvious and slow, the oracle of the real one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.changes import ROW_OPS, Op
from pgstream_dagster.schema.table import TableSchema
from tests.support.reference.change import Change, Position

Key = tuple[str | None, ...]


@dataclass
class Row:
    """One row of the table; `image` under the newest schema's names."""

    key: Key | None
    image: dict[str, str | None]
    position: Position
    schema_id: int | None


@dataclass
class Relation:
    """The rows of one relation, change by change."""

    schemas: Sequence[TableSchema]
    keyed: dict[Key, Row] = field(default_factory=dict)
    keyless: Counter[tuple[tuple[str, str | None], ...]] = field(default_factory=Counter)
    added: dict[tuple[tuple[str, str | None], ...], list[Change]] = field(
        default_factory=lambda: defaultdict(list)
    )
    open: bool = True

    def apply(self, change: Change) -> None:
        if change.op is Op.COPY:
            self.open = True
            self.clear()
        elif change.op is Op.GAP:
            self.open = False
        elif change.op is Op.TRUNCATE and self.open:
            self.clear()
        elif change.op in ROW_OPS and self.open:
            if change.key is None:
                self.apply_keyless(change)
            else:
                self.apply_keyed(change, change.key)

    def clear(self) -> None:
        self.keyed.clear()
        self.keyless.clear()
        self.added.clear()

    def apply_keyed(self, change: Change, key: Key) -> None:
        if change.op is Op.DELETE:
            self.keyed.pop(key, None)
            return
        assert change.after is not None
        old = self.keyed.get(key)
        if change.old_key is not None:
            old = self.keyed.pop(change.old_key, None)
            self.keyed.pop(key, None)
        if change.op in (Op.INSERT, Op.READ) or self.is_whole(change, change.after):
            image = self.whole(change, change.after)
        elif old is not None:
            image = old.image | self.renamed(change, change.after)
        else:
            return
        self.keyed[key] = Row(key, image, change.position, change.schema_id)

    def apply_keyless(self, change: Change) -> None:
        if change.op in (Op.UPDATE, Op.DELETE):
            if change.before is None or not self.is_whole(change, change.before):
                return
            self.keyless[entries(self.whole(change, change.before))] -= 1
        if change.op is not Op.DELETE:
            assert change.after is not None
            row = entries(self.whole(change, change.after))
            self.keyless[row] += 1
            self.added[row].append(change)

    def rows(self) -> list[Row]:
        keyless = [
            Row(None, dict(row), change.position, change.schema_id)
            for row, count in self.keyless.items()
            if count > 0
            for change in self.added[row][-count:]
        ]
        return [*self.keyed.values(), *keyless]

    def schema_of(self, change: Change) -> TableSchema:
        return next(s for s in self.schemas if s.schema_id == change.schema_id)

    def is_whole(self, change: Change, image: object) -> bool:
        assert isinstance(image, dict)
        return set(image) == {column.name for column in self.schema_of(change).columns}

    def renamed(self, change: Change, image: object) -> dict[str, str | None]:
        assert isinstance(image, dict)
        attnums = self.schema_of(change).attnums
        newest = {column.attnum: column.name for column in self.schemas[-1].columns}
        return {
            newest[attnums[name]]: value for name, value in image.items() if attnums[name] in newest
        }

    def whole(self, change: Change, image: object) -> dict[str, str | None]:
        row = self.renamed(change, image)
        had = set(self.schema_of(change).attnums.values())
        for column in self.schemas[-1].columns:
            if column.attnum not in had:
                row[column.name] = self.missing(column.attnum)
        return row

    def missing(self, attnum: int) -> str | None:
        for schema in self.schemas:
            for column in schema.columns:
                if column.attnum == attnum:
                    return column.missing
        raise AssertionError(attnum)


def entries(image: dict[str, str | None]) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted(image.items(), key=lambda item: item[0]))


def fold(
    changes: Iterable[Change],
    schemas: Sequence[TableSchema],
    *,
    upto: tuple[int, Lsn] | None = None,
) -> list[Row]:
    """The rows after `changes`, every one of them applied in order of position."""
    relation = Relation(schemas)
    seen: set[Position] = set()
    for change in sorted(changes, key=lambda change: change.position):
        if upto is not None and not change.position < Position(*upto, 0):
            continue
        if change.key is not None and change.position in seen:
            continue  # a keyed fold is idempotent; a keyless one counts
        seen.add(change.position)
        relation.apply(change)
    return relation.rows()
