"""The names of a query."""

from __future__ import annotations

import pytest

from pgstream_dagster.query.catalog import Catalog, place
from pgstream_dagster.tables.assignment import table_name


def test_names_are_found_in_any_case_and_ours_before_those_of_public() -> None:
    catalog = Catalog()
    catalog.add("public", "Orders", "first", 17)
    catalog.add("main", "change_log", "log")
    catalog.add("public", "change_log", "second", 18)
    matches = [
        catalog.find("", "ORDERS"),
        catalog.find("", "change_log"),
        catalog.find("PUBLIC", "change_log"),
    ]
    assert [readable and readable.query for readable in matches] == ["first", "log", "second"]
    assert catalog.find("other", "orders") is None


def test_of_names_that_differ_in_case_the_later_one_has_a_number() -> None:
    catalog = Catalog()
    catalog.add("public", "orders", "first", 17)
    catalog.add("public", "Orders", "second", 18)
    catalog.add("public", "orders_18", "third", 19)
    assert catalog.names() == ["public.Orders_18", "public.orders", "public.orders_18_19"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Mixed Case", "Mixed Case"),
        ("été", "été"),
        ("x~y z", "x~y z"),
        ("line a", "line~20a"),  # or the letter with the number 20a
        ("łan", "~142an"),
    ],
)
def test_a_folder_has_the_name_of_its_table_or_its_own(name: str, shown: str) -> None:
    folder = table_name("{namespace}.{relation}", "public", name)
    assert place(folder) == ("public", shown)
