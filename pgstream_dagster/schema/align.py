"""
Which attnum each column of a Relation message has: pure, no I/O.

Postgres describes a relation by names and types as of one moment of the stream; attnums are only
in the catalog, which shows the present. Between the previous version, the message and now, columns
may have been added, dropped, renamed and retyped. Some rules always hold: attnums grow with the
time of creation and are never reused, dropped columns stay in the catalog as such, and a message
lists columns in their order. So a description maps to an increasing choice of attnums that

- takes every attnum of the previous version that still exists,
- takes every existing attnum below a later one that it takes,
- may take dropped ones.

Without dropped columns the choice is forced and every rename is recognised. With them there may be
several; then a column's full name and type, in the previous version or now, decide; a column that
was added and dropped since may have been anything. What this leaves open is uncertain: a rename and
a drop + add must never be confused, since one keeps the old rows' values and the other does not.
A column of the previous version may have taken the name and type that a new column has now, and was
dropped, all before the catalog was read. So where there is a choice, a new column counts only if it
was made by an earlier transaction than that of the message, or by the same one; all of this in one
transaction is resolved wrongly. So is a column that had the name and type of another one before,
and was dropped as that one was: that concerns no column which still exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol


class ColumnShape(NamedTuple):
    """How a Relation message describes a column."""

    name: str
    type_oid: int
    typmod: int


class Shaped(Protocol):
    """A column of a Relation message, or of a version."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def type_oid(self) -> int: ...  # noqa: D102

    @property
    def typmod(self) -> int: ...  # noqa: D102


def shapes(columns: Iterable[Shaped]) -> list[ColumnShape]:
    """How a Relation message describes these columns."""
    return [ColumnShape(column.name, column.type_oid, column.typmod) for column in columns]


@dataclass(frozen=True, slots=True)
class Alignment:
    """An attnum per described column; negative where there is no guess. Use it only if certain."""

    attnums: tuple[int, ...]
    certain: bool


def align(
    described: Sequence[ColumnShape],
    attributes: Mapping[int, ColumnShape | None],
    previous: Mapping[int, ColumnShape] | None,
    late: Collection[int] = (),
) -> Alignment:
    """
    The attnums of a described relation.

    Shape:
        described: the message's columns, in its order.
        attributes: every attnum the relation ever had, ascending, as the catalog shows it now: a
            dropped column (None) has lost its name and type. Empty when the relation was dropped.
        previous: the newest version from before the message, by attnum; None for a new relation.
        late: attnums that may have been made, or changed, after the message.
    """
    if previous is not None and any(attnum < 1 for attnum in previous):
        previous = None  # a guess of ours from an uncertain description
    if not attributes:
        return _without_catalog(described, previous)
    is_new, before = previous is None, previous or {}
    now = {attnum: shape for attnum, shape in attributes.items() if shape is not None}
    exact = _by_shape(described, now)
    if exact is not None and is_new:
        # The log has no rows of it yet that a wrong attnum could be confused with.
        return Alignment(exact, certain=True)
    choice = _choose(described, attributes, before)
    if choice is None:
        return Alignment(exact or _no_guess(described), certain=False)
    if choice.is_forced:
        is_certain = _is_explained(described, choice.attnums, now, before)
    else:
        is_certain = choice.is_best and _is_proven(described, choice.attnums, now, before)
        is_certain = is_certain and {*late}.isdisjoint({*choice.attnums} - before.keys())
    return Alignment(choice.attnums if is_certain else exact or choice.attnums, is_certain)


class _Choice(NamedTuple):
    attnums: tuple[int, ...]
    is_best: bool  # no other choice has, or could have, as many full matches
    is_forced: bool  # there is no other choice


def _choose(
    described: Sequence[ColumnShape],
    attributes: Mapping[int, ColumnShape | None],
    before: Mapping[int, ColumnShape],
) -> _Choice | None:
    """
    The choice with most full matches; None when no choice is possible.

    Dynamic programming over attnums, by the number of described columns taken so far. Attnums that
    are not in the previous version but lower than its newest were dropped or unpublished already.
    """
    newest, count = max(before, default=0), len(described)
    states: list[_State | None] = [_State(0, 1, 1, None)] + [None] * count
    for attnum, shape in attributes.items():
        if attnum not in before and attnum < newest:
            continue
        # A column of the previous version that still exists must be in the message. A new one may
        # be newer than the message, that is, when nothing after it is taken.
        can_be_newer = shape is not None and attnum not in before
        following: list[_State | None] = [None] * (count + 1)
        for taken, state in enumerate(states):
            if state is None:
                continue
            if shape is None or (can_be_newer and taken == count):
                following[taken] = _better(following[taken], state)
            if taken < count:
                match = _may_match(described[taken], before.get(attnum), shape)
                grown = state._replace(matches=state.matches + match, path=(attnum, state.path))
                following[taken + 1] = _better(following[taken + 1], grown)
        states = following
    best = states[count]
    if best is None:
        return None
    return _Choice(_unwound(best.path), best.best_ways == 1, best.ways == 1)


_Path = tuple[int, "_Path | None"]


class _State(NamedTuple):
    """The best way to have taken so many columns, and whether there are others."""

    matches: int
    best_ways: int  # with as many matches; counted up to _MANY
    ways: int  # with any number of matches; counted up to _MANY
    path: _Path | None  # the last attnum taken, and the path before it


_MANY: Final = 2
"""Ways are counted only to distinguish one from several."""


def _better(state: _State | None, other: _State) -> _State:
    if state is None:
        return other
    ways = min(_MANY, state.ways + other.ways)
    if state.matches == other.matches:
        return state._replace(best_ways=min(_MANY, state.best_ways + other.best_ways), ways=ways)
    return max(state, other, key=lambda state: state.matches)._replace(ways=ways)


def _unwound(path: _Path | None) -> tuple[int, ...]:
    attnums: list[int] = []
    while path is not None:
        attnum, path = path
        attnums.append(attnum)
    return tuple(reversed(attnums))


def _may_match(column: ColumnShape, before: ColumnShape | None, now: ColumnShape | None) -> bool:
    """Full name and type are those before or now, or both are unknown."""
    return (before is None and now is None) or column in (before, now)


def _is_proven(
    described: Sequence[ColumnShape],
    attnums: Sequence[int],
    now: Mapping[int, ColumnShape],
    before: Mapping[int, ColumnShape],
) -> bool:
    """Whether each column has the full name and type of its attnum before or now."""
    return all(
        column in (before.get(attnum), now.get(attnum))
        for column, attnum in zip(described, attnums, strict=True)
    )


def _is_explained(
    described: Sequence[ColumnShape],
    attnums: Sequence[int],
    now: Mapping[int, ColumnShape],
    before: Mapping[int, ColumnShape],
) -> bool:
    """
    Whether each column is as it was before or is now, or differs by name or type alone.

    A name that another column has now is no rename: then the publication's columns were changed.
    """
    named = {shape.name: attnum for attnum, shape in now.items()}
    for column, attnum in zip(described, attnums, strict=True):
        shapes = [s for s in (before.get(attnum), now.get(attnum)) if s is not None]
        if column in shapes:
            continue
        is_elsewhere = named.get(column.name, attnum) != attnum
        if is_elsewhere or (shapes and not any(_is_akin(column, shape) for shape in shapes)):
            return False
    return True


def _is_akin(column: ColumnShape, other: ColumnShape) -> bool:
    """Renamed or retyped, not both."""
    return column.name == other.name or column[1:] == other[1:]


def _by_shape(
    described: Sequence[ColumnShape], shapes: Mapping[int, ColumnShape]
) -> tuple[int, ...] | None:
    """The attnums with these names and types, if all exist and in this order."""
    places = {shape: attnum for attnum, shape in shapes.items()}
    attnums = tuple(places.get(column, 0) for column in described)
    is_rising = all(a < b for a, b in zip((0, *attnums), attnums, strict=False))
    return attnums if is_rising else None


def _no_guess(described: Sequence[ColumnShape]) -> tuple[int, ...]:
    return tuple(-1 - place for place in range(len(described)))


def _without_catalog(
    described: Sequence[ColumnShape], previous: Mapping[int, ColumnShape] | None
) -> Alignment:
    """
    The relation was dropped: there is only the previous version.

    A relation never seen before gets 1, 2, 3, ...: nothing else can be confused with them.
    """
    if previous is None:
        return Alignment(tuple(range(1, len(described) + 1)), certain=True)
    exact = _by_shape(described, previous)
    return Alignment(_no_guess(described) if exact is None else exact, certain=exact is not None)
