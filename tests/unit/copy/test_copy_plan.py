"""What a copy asks for: ranges that hold every page once, statements that give output text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.copy import copy_plan
from pgstream_dagster.copy.copy_plan import (
    TASK_PAGES,
    Leaf,
    PageRange,
    TextColumn,
    divide,
    text_columns,
)

ORDERS = Leaf(1, "shop", "orders", pages=10 * TASK_PAGES)
NAMES = st.text("ab\" .'%", min_size=1, max_size=5)


def select(columns: Sequence[TextColumn], pages: PageRange) -> str:
    return copy_plan.select(columns, pages, None).as_string(None)


@st.composite
def leaf_lists(draw: st.DrawFn) -> list[Leaf]:
    pages = st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 5 * TASK_PAGES))
    sizes = draw(st.lists(pages, max_size=12))
    return [Leaf(number, "s", f"leaf{number}", size) for number, size in enumerate(sizes)]


@given(leaf_lists(), st.integers(1, 9))
def test_every_page_is_in_exactly_one_range_and_the_last_range_is_open(
    leaves: list[Leaf], at_most: int
) -> None:
    tasks = divide(leaves, at_most=at_most)
    for leaf in leaves:
        ranges = sorted(
            (pages for task in tasks for pages in task.ranges if pages.leaf == leaf),
            key=lambda pages: pages.first,
        )
        assert ranges[0].first == 0
        assert [pages.end for pages in ranges[:-1]] == [pages.first for pages in ranges[1:]]
        assert ranges[-1].end is None
        assert all(pages.end is None or pages.first < pages.end for pages in ranges)


@given(leaf_lists(), st.integers(1, 9))
def test_tasks_are_numbered_bounded_and_even(leaves: list[Leaf], at_most: int) -> None:
    tasks = divide(leaves, at_most=at_most)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    assert 1 <= len(tasks) <= at_most
    if len(tasks) > 1:
        total = sum(leaf.pages for leaf in leaves)
        for task in tasks:
            share = sum((r.end or r.leaf.pages) - r.first for r in task.ranges)
            assert abs(share - total / len(tasks)) <= 1


def test_a_small_table_is_one_range() -> None:
    leaf = Leaf(1, "s", "small", pages=TASK_PAGES)
    (task,) = divide([leaf], at_most=8)
    assert task.ranges == (PageRange(leaf),)


def test_a_tree_without_partitions_is_a_task_without_ranges() -> None:
    (task,) = divide([], at_most=8)
    assert task.ranges == ()


def test_one_range_is_read_with_its_ends_and_its_filter() -> None:
    columns = [TextColumn("id"), TextColumn("done", by_cast=False, output="boolout")]
    statement = copy_plan.copy_statement(columns, PageRange(ORDERS, 5, 9), "(id > 7)")
    assert statement.as_string(None) == (
        'copy (select "id"::pg_catalog.text,'
        ' pg_catalog.textin("pg_catalog"."boolout"("done"))'
        ' from only "shop"."orders"'
        " where ctid >= '(5,0)'::pg_catalog.tid and ctid < '(9,0)'::pg_catalog.tid"
        " and ((id > 7))) to stdout (format binary)"
    )


def test_the_whole_of_a_table_is_read_without_conditions() -> None:
    assert select([TextColumn("id")], PageRange(ORDERS)) == (
        'select "id"::pg_catalog.text from only "shop"."orders"'
    )


def test_a_table_without_columns_is_read_as_rows_without_columns() -> None:
    assert select([], PageRange(ORDERS)) == 'select  from only "shop"."orders"'


def test_a_tree_is_read_by_its_root_where_its_leaves_are_closed() -> None:
    root = Leaf(1, "shop", "orders", pages=0, with_partitions=True)
    assert select([TextColumn("id")], PageRange(root)).endswith('from "shop"."orders"')


@given(NAMES, NAMES, NAMES)
def test_names_cannot_leave_their_quotes(namespace: str, name: str, column: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    statement = select([TextColumn(column)], PageRange(Leaf(1, namespace, name, 1)))
    assert statement == (
        f"select {quoted(column)}::pg_catalog.text from only {quoted(namespace)}.{quoted(name)}"
    )


def test_types_with_another_cast_are_printed_by_their_output_function() -> None:
    columns = text_columns([("a", 23), ("b", 16), ("c", 90_001)], {16: "boolout", 90_001: None})
    assert columns == (
        TextColumn("a"),
        TextColumn("b", by_cast=False, output="boolout"),
        TextColumn("c", by_cast=False),
    )
    assert "pg_catalog.format('%s', \"c\")" in select(columns, PageRange(ORDERS))
