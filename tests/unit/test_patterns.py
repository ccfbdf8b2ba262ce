"""Patterns that name tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.patterns import TablePattern, canonical, full_name


@pytest.mark.parametrize(
    ("pattern", "namespace", "name"),
    [
        ("public.orders", "public", "orders"),
        ("orders", "public", "orders"),
        ("shop.*", "shop", "orders"),
        ("*.*", "shop", "orders"),
        ("*", "public", "orders"),
        ("*.users", "any", "users"),
        ("shop_?.o*s", "shop_1", "orders"),
        ('"a.b"."c d"', "a.b", "c d"),
        ('"say ""hi"""', "public", 'say "hi"'),
        ('public."*"', "public", "*"),
        ("público.naïve", "público", "naïve"),
    ],
)
def test_pattern_means(pattern: str, namespace: str, name: str) -> None:
    assert TablePattern.parse(pattern).matches(namespace, name)


@pytest.mark.parametrize(
    ("pattern", "namespace", "name"),
    [
        ("orders", "shop", "orders"),
        ("shop.*", "shop2", "orders"),
        ("public.Orders", "public", "orders"),
        ("public.order", "public", "orders"),
        ('public."*"', "public", "orders"),
        ("public.o.", "public", "ox"),
    ],
)
def test_pattern_does_not_mean(pattern: str, namespace: str, name: str) -> None:
    try:
        parsed = TablePattern.parse(pattern)
    except ValueError:
        return
    assert not parsed.matches(namespace, name)


@pytest.mark.parametrize("pattern", ["", "a.b.c", ".", "a.", ".b", "a b", '"', 'a."b', '""'])
def test_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is no table pattern"):
        TablePattern.parse(pattern)


@pytest.mark.parametrize(
    ("pattern", "is_exact"), [("a.b", True), ('a."*"', True), ("a.*", False), ("?.b", False)]
)
def test_pattern_names_one_table_or_many(pattern: str, is_exact: bool) -> None:
    assert TablePattern.parse(pattern).is_exact is is_exact


@given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1))
def test_a_quoted_name_means_itself(name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    pattern = TablePattern.parse(f"{quoted}.{quoted}")
    assert pattern.is_exact
    assert pattern.matches(name, name)
    assert not pattern.matches(name, name + "x")


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_full_name_is_of_one_table_and_written_as_a_pattern(namespace: str, name: str) -> None:
    written = full_name(namespace, name)
    assert TablePattern.parse(written).matches(namespace, name)
    assert TablePattern.parse(written).is_exact
    assert canonical(written) == written


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("orders", "public.orders"),
        ('"public"."orders"', "public.orders"),
        ('"a.b"."c"', '"a.b".c'),
        ("a.b.c", "a.b.c"),  # which table that is cannot be told
    ],
)
def test_a_table_has_one_name_however_it_is_written(written: str, name: str) -> None:
    assert canonical(written) == name
