"""Attnums for described columns: determined where possible, uncertain otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.schema.align import Alignment, ColumnShape, align

INT, TEXT = 23, 25


def c(name: str, type_oid: int = INT) -> ColumnShape:
    return ColumnShape(name, type_oid, -1)


def aligned_words(described: str, now: str, previous: str | None) -> Alignment:
    """
    Align columns given as words: `id`, `name:t` for text. In `now` and `previous` the place is the
    attnum, and `-` is dropped or not published.
    """
    attributes = {
        place: None if word == "-" else _shape(word) for place, word in enumerate(now.split(), 1)
    }
    before = None
    if previous is not None:
        before = {p: _shape(w) for p, w in enumerate(previous.split(), 1) if w != "-"}
    return align([_shape(word) for word in described.split()], attributes, before)


def _shape(word: str) -> ColumnShape:
    name, _, kind = word.partition(":")
    return c(name, TEXT if kind else INT)


@pytest.mark.parametrize(
    ("described", "now", "previous", "attnums"),
    [
        pytest.param("id a", "id a", "id a", (1, 2), id="nothing changed"),
        pytest.param("id a", "id a b", "id a", (1, 2), id="before a column was added"),
        pytest.param("id a b", "id a b", "id a", (1, 2, 3), id="after a column was added"),
        pytest.param("id b", "id b", "id a", (1, 2), id="after a rename"),
        pytest.param("id a", "id b", "id a", (1, 2), id="before a rename"),
        pytest.param("id b", "id c", "id a", (1, 2), id="between two renames"),
        pytest.param("id b a", "id b a", "id a b", (1, 2, 3), id="after two columns swapped names"),
        pytest.param("id a b", "id b a", "id a b", (1, 2, 3), id="before they swapped names"),
        pytest.param("id b", "id - b", "id a b", (1, 3), id="after a drop"),
        pytest.param("id a b", "id - b", "id a b", (1, 2, 3), id="before a drop"),
        pytest.param("id b", "id - b", "id a", (1, 3), id="after drop and add, another name"),
        pytest.param("id a", "id - b", "id a", (1, 2), id="before drop and add, another name"),
        pytest.param("id a:t", "id - a:t", "id a", (1, 3), id="after drop and add, another type"),
        pytest.param("id a", "id - a:t", "id a", (1, 2), id="before drop and add, another type"),
        pytest.param("id a:t", "id a:t", "id a", (1, 2), id="after a retype"),
        pytest.param("id a", "id a:t", "id a", (1, 2), id="before a retype"),
        pytest.param("id a", "id a a2", "id a", (1, 2), id="before add, in a longer change"),
        pytest.param("id a a2", "id - a", "id a", (1, 2, 3), id="expand, before contract"),
        pytest.param("id a", "id - a", "id a a2", (1, 3), id="contract: drop, then rename"),
        pytest.param("id x", "- id - x", "- id - x", (2, 4), id="older drops do not matter"),
        pytest.param("id x", "- id - x", None, (2, 4), id="a new relation with older drops"),
        pytest.param("id x", "id -", "id", (1, 2), id="a column added and dropped since"),
        pytest.param("", "", "", (), id="no columns"),
        pytest.param("", "-", "a", (), id="the only column was dropped"),
    ],
)
def test_attnums_are_determined(
    described: str, now: str, previous: str | None, attnums: tuple[int, ...]
) -> None:
    if not now:  # a relation that never had a column: the catalog shows it all the same
        assert align([], {}, {}) == Alignment((), certain=True)
        return
    assert aligned_words(described, now, previous) == Alignment(attnums, certain=True)


@pytest.mark.parametrize(
    ("described", "now", "previous"),
    [
        pytest.param("id a", "id - a", "id a", id="dropped and added with the same name and type"),
        pytest.param("id c", "id - -", "id a b", id="one renamed, one dropped, both dropped since"),
        pytest.param("id a", "id - - a", "id", id="added, dropped and added again"),
        pytest.param("id z:t", "id a", "id a", id="renamed and retyped since, and before"),
        pytest.param("id a b", "id a", "id a", id="more columns than the catalog ever had"),
        pytest.param("id", "id a", "id a", id="a column less than still exist"),
    ],
)
def test_what_the_catalog_leaves_open_is_uncertain(described: str, now: str, previous: str) -> None:
    assert not aligned_words(described, now, previous).certain


def test_a_column_that_joins_the_column_list_is_no_rename_of_another() -> None:
    # attnum 2 was not published; now the list has it too
    attributes = {i: c(name) for i, name in enumerate(["id", "a", "b", "d"], 1)}
    previous = {1: c("id"), 3: c("b")}
    aligned = align([c("id"), c("a"), c("b")], attributes, previous)
    assert aligned == Alignment((1, 2, 3), certain=False)


def test_a_dropped_relation_is_aligned_with_its_previous_version() -> None:
    previous = {2: c("id"), 5: c("a")}
    assert align([c("id"), c("a")], {}, previous) == Alignment((2, 5), certain=True)
    assert not align([c("id"), c("b")], {}, previous).certain


def test_a_relation_dropped_before_it_was_ever_seen_counts_its_columns() -> None:
    assert align([c("id"), c("a")], {}, None) == Alignment((1, 2), certain=True)


def test_a_guess_of_an_earlier_call_is_ignored() -> None:
    guessed = {-1: c("id"), -2: c("a")}
    attributes = {1: c("id"), 2: c("a")}
    assert align([c("id"), c("a")], attributes, guessed) == Alignment((1, 2), certain=True)


def test_a_relation_of_1600_columns_is_aligned_in_a_second() -> None:
    attributes = {i: c(f"c{i}") for i in range(1, 1601)}
    previous = {i: c(f"c{i}") for i in range(1, 1600)}
    aligned = align([c(f"c{i}") for i in range(1, 1601)], attributes, previous)
    assert aligned == Alignment(tuple(range(1, 1601)), certain=True)


class Table:
    """Columns as Postgres keeps them: attnums only grow, dropped ones stay."""

    def __init__(self) -> None:
        self.shapes: list[ColumnShape | None] = []

    def live(self) -> dict[int, ColumnShape]:
        return {i: shape for i, shape in enumerate(self.shapes, 1) if shape is not None}

    def alter(self, draw: st.DrawFn) -> None:
        live = self.live()
        free = sorted(set("abcd") - {shape.name for shape in live.values()})
        verbs = ["add"] * bool(free) + ["drop", "retype"] * bool(live)
        verbs += ["rename"] * bool(live and free)
        verb = draw(st.sampled_from(verbs))
        if verb == "add":
            self.shapes.append(c(draw(st.sampled_from(free)), draw(st.sampled_from([INT, TEXT]))))
            return
        attnum = draw(st.sampled_from(sorted(live)))
        shape = live[attnum]
        self.shapes[attnum - 1] = {
            "drop": None,
            "rename": shape._replace(name=draw(st.sampled_from(free))) if free else None,
            "retype": shape._replace(type_oid=TEXT if shape.type_oid == INT else INT),
        }[verb]


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[dict[int, ColumnShape], dict[int, ColumnShape], dict[int, ColumnShape | None]]:
    """The previous version, the message, the catalog: at most one ALTER between two of them."""
    table = Table()
    for _ in range(draw(st.integers(1, 6))):
        table.alter(draw)
    previous = table.live()
    for _ in range(draw(st.integers(0, 1))):
        table.alter(draw)
    described = table.live()
    for _ in range(draw(st.integers(0, 1))):
        table.alter(draw)
    now = dict(enumerate(table.shapes, 1))
    return previous, described, now


@given(histories())
def test_what_is_certain_is_true(
    history: tuple[dict[int, ColumnShape], dict[int, ColumnShape], dict[int, ColumnShape | None]],
) -> None:
    previous, described, now = history
    aligned = align(list(described.values()), now, previous)
    assert not aligned.certain or aligned.attnums == tuple(described)
    assert len(set(aligned.attnums)) == len(described)


def test_a_new_column_that_may_be_later_than_the_message_is_taken_only_without_a_choice() -> None:
    previous = {1: c("id"), 2: c("a")}
    forced = {**previous, 3: c("x")}
    assert align([*previous.values(), c("x")], forced, previous, late={3}).certain
    described = [c("id"), c("x")]
    chosen: dict[int, ColumnShape | None] = {1: c("id"), 2: None, 3: c("x")}
    assert align(described, chosen, previous) == Alignment((1, 3), certain=True)
    assert not align(described, chosen, previous, late={3}).certain
