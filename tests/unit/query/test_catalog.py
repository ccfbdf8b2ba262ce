"""The names of a query."""

from __future__ import annotations

from pgstream_dagster.query.catalog import Catalog


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
