"""
Which attnum each column of a Relation message has: pure, no I/O.

Postgres describes a relation by names and types as of one moment of the stream; attnums are only
in the catalog, which shows the present. Between the last version we know, the message and now,
columns may have been added, dropped, renamed and retyped. What holds throughout: attnums grow with
the time of creation and are never used again, dropped columns stay in the catalog as such, and a
message lists columns in their order. So a description maps to an increasing choice of attnums that

- takes every attnum that was known and still exists,
- takes every existing attnum below a later one that it takes,
- may take dropped ones.

Without dropped columns the choice is forced and every rename is told. With them there may be
several; then a column's full name and type, as known or as now, decide; a column that was added
and dropped since the known version may have been anything. What this leaves open is said to be
uncertain: a rename and a drop + add must never be mixed up, since one keeps the old rows' values
and the other does not. One kind of history is told wrong: a known column that took the name and
type which another column had before or has now, and was dropped, all before anybody looked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class ColumnShape(NamedTuple):
    """What a description says of one column."""

    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attnum as the catalog shows it now; a dropped one has lost its name and type."""

    attnum: int
    shape: ColumnShape | None  # None: dropped


@dataclass(frozen=True, slots=True)
class Alignment:
    """An attnum per described column; negative where there is no guess. Use it only if certain."""

    attnums: tuple[int, ...]
    certain: bool


def align(
    described: Sequence[ColumnShape],
    attributes: Sequence[Attribute],
    known: Mapping[int, ColumnShape] | None,
) -> Alignment:
    """
    The attnums of a described relation.

    Shape:
        described: the message's columns, in its order.
        attributes: every attnum the relation ever had, ascending; empty when it was dropped.
        known: the newest version from before the message, by attnum; None for a new relation.
    """
    if known is not None and any(attnum < 1 for attnum in known):
        known = None  # a guess of ours from an uncertain description
    if not attributes:
        return _without_catalog(described, known)
    is_new, known = known is None, known or {}
    now = {a.attnum: a.shape for a in attributes if a.shape is not None}
    exact = _by_shape(described, now)
    if exact is not None and is_new:
        # The log has no rows of it yet that a wrong attnum could be mixed up with.
        return Alignment(exact, certain=True)
    choice = _choose(described, attributes, known)
    if choice is None:
        return Alignment(exact or _no_guess(described), certain=False)
    if choice.is_forced:
        is_told = _is_explained(described, choice.attnums, now, known)
    else:
        is_told = choice.is_best and _is_proven(described, choice.attnums, now, known)
    return Alignment(choice.attnums if is_told else exact or choice.attnums, certain=is_told)


class _Choice(NamedTuple):
    attnums: tuple[int, ...]
    is_best: bool  # no other choice has, or could have, as many full matches
    is_forced: bool  # there is no other choice


def _choose(
    described: Sequence[ColumnShape],
    attributes: Sequence[Attribute],
    known: Mapping[int, ColumnShape],
) -> _Choice | None:
    """
    The choice with most full matches; None when no choice is possible.

    Dynamic programming over attnums, by the number of described columns taken so far.
    """
    candidates = _candidates(attributes, known)
    wanted = len(described)
    states: list[_State | None] = [_State(0, 1, 1, None)] + [None] * wanted
    for attribute in candidates:
        is_known, is_live = attribute.attnum in known, attribute.shape is not None
        following: list[_State | None] = [None] * (wanted + 1)
        for taken, state in enumerate(states):
            if state is None:
                continue
            # A known column that still exists cannot be missing from the message; a new one can
            # when it is newer than the message, that is, when nothing after it is taken.
            if not is_live or (not is_known and taken == wanted):
                following[taken] = _better(following[taken], state)
            if taken < wanted:
                match = _may_match(described[taken], attribute, known)
                path = (attribute.attnum, state.path)
                grown = state._replace(matches=state.matches + match, path=path)
                following[taken + 1] = _better(following[taken + 1], grown)
        states = following
    best = states[wanted]
    if best is None:
        return None
    return _Choice(_unwound(best.path), best.best_ways == 1, best.ways == 1)


_Path = tuple[int, "_Path | None"]


class _State(NamedTuple):
    """The best way to have taken so many columns, and whether there are others."""

    matches: int
    best_ways: int  # with as many matches; counted up to _MANY
    ways: int  # with any number of matches; counted up to _MANY
    path: _Path | None


_MANY: Final = 2
"""Ways are counted to tell one from several."""


def _better(one: _State | None, other: _State) -> _State:
    if one is None:
        return other
    ways = min(_MANY, one.ways + other.ways)
    if one.matches == other.matches:
        return one._replace(best_ways=min(_MANY, one.best_ways + other.best_ways), ways=ways)
    return max(one, other, key=lambda state: state.matches)._replace(ways=ways)


def _unwound(path: _Path | None) -> tuple[int, ...]:
    attnums: list[int] = []
    while path is not None:
        attnum, path = path
        attnums.append(attnum)
    return tuple(reversed(attnums))


def _candidates(
    attributes: Sequence[Attribute], known: Mapping[int, ColumnShape]
) -> list[Attribute]:
    """The known attnums and all later ones: others were dropped or unpublished before."""
    newest = max(known, default=0)
    return [a for a in attributes if a.attnum in known or a.attnum > newest]


def _may_match(column: ColumnShape, attribute: Attribute, known: Mapping[int, ColumnShape]) -> bool:
    """Full name and type are the known or the present ones, or they cannot be known."""
    before = known.get(attribute.attnum)
    was_anything = before is None and attribute.shape is None
    return was_anything or column in (before, attribute.shape)


def _is_proven(
    described: Sequence[ColumnShape],
    attnums: Sequence[int],
    now: Mapping[int, ColumnShape],
    known: Mapping[int, ColumnShape],
) -> bool:
    """Whether each column, by full name and type, is the one known or the one there now."""
    return all(
        column in (known.get(attnum), now.get(attnum))
        for column, attnum in zip(described, attnums, strict=True)
    )


def _is_explained(
    described: Sequence[ColumnShape],
    attnums: Sequence[int],
    now: Mapping[int, ColumnShape],
    known: Mapping[int, ColumnShape],
) -> bool:
    """
    Whether each column is the one known or the one there now, or differs by name or type alone.

    A name that another column has now is no rename: then the publication's columns were changed.
    """
    named = {shape.name: attnum for attnum, shape in now.items()}
    for column, attnum in zip(described, attnums, strict=True):
        shapes = [s for s in (known.get(attnum), now.get(attnum)) if s is not None]
        if column in shapes:
            continue
        is_elsewhere = named.get(column.name, attnum) != attnum
        if is_elsewhere or (shapes and not any(_is_akin(column, shape) for shape in shapes)):
            return False
    return True


def _is_akin(one: ColumnShape, other: ColumnShape) -> bool:
    """Renamed or retyped, not both."""
    return one.name == other.name or one[1:] == other[1:]


def _by_shape(
    described: Sequence[ColumnShape], shapes: Mapping[int, ColumnShape]
) -> tuple[int, ...] | None:
    """Each column where its name and type are, if all are and in this order."""
    places = {shape: attnum for attnum, shape in shapes.items()}
    attnums = tuple(places.get(column, 0) for column in described)
    is_rising = all(a < b for a, b in zip((0, *attnums), attnums, strict=False))
    return attnums if is_rising else None


def _no_guess(described: Sequence[ColumnShape]) -> tuple[int, ...]:
    return tuple(-1 - place for place in range(len(described)))


def _without_catalog(
    described: Sequence[ColumnShape], known: Mapping[int, ColumnShape] | None
) -> Alignment:
    """
    The relation was dropped: only what we know can tell.

    A relation never seen before gets 1, 2, 3, ...: nothing else can be mixed up with them.
    """
    if known is None:
        return Alignment(tuple(range(1, len(described) + 1)), certain=True)
    exact = _by_shape(described, known)
    if exact is None:
        return Alignment(_no_guess(described), certain=False)
    return Alignment(exact, certain=True)
