"""The Delta types of columns, from their types, modifiers and options."""

from __future__ import annotations

import pytest

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.schema.table import Column
from pgstream_dagster.tables.forms import misplaced, numeric_modifier
from pgstream_dagster.tables.types import delta_type


def column(value_type: str, precision: int = 0, scale: int = 0) -> Column:
    typmod = (precision << 16 | scale & 0x7FF) + 4 if precision else -1
    return Column("c", 1, 1, value_type, typmod, value_type=value_type)


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (0, 0, "string"),
        (10, 2, "decimal(10,2)"),
        (38, 38, "decimal(38,38)"),
        (39, 2, "string"),
        (2, -3, "decimal(5,0)"),
        (3, 5, "decimal(5,5)"),
        (2, -37, "string"),
        (1000, 1000, "string"),
        (1000, -1000, "string"),
    ],
)
def test_a_numeric_is_a_decimal_where_its_modifier_bounds_it(
    precision: int, scale: int, expected: str
) -> None:
    assert delta_type(column("numeric", precision, scale)).simpleString() == expected


@pytest.mark.parametrize("scale", [-1000, -1, 0, 1, 1000])
def test_modifier_of_a_numeric(scale: int) -> None:
    assert numeric_modifier(column("numeric", 1000, scale).typmod) == (1000, scale)


@pytest.mark.parametrize(
    ("value_type", "expected"),
    [
        ("numeric[]", "array<string>"),
        ("enum[]", "array<string>"),
        ("composite", "string"),
        ("", "string"),
        ("geometry", "string"),
        ("geometry[]", "string"),  # its elements are separated by a colon
        ("box[]", "string"),
        ("int4[][]", "string"),  # an array of a domain over arrays
        ("vector[]", "array<array<float>>"),
    ],
)
def test_what_is_not_known_is_a_string(value_type: str, expected: str) -> None:
    assert delta_type(column(value_type)).simpleString() == expected


def test_options_change_the_type() -> None:
    decimal = ColumnTypes(numeric="decimal(20,4)")
    assert delta_type(column("numeric"), decimal).simpleString() == "decimal(20,4)"
    assert delta_type(column("numeric[]", 10, 2), decimal).simpleString() == "array<decimal(20,4)>"
    assert "lower:decimal(20,4)" in delta_type(column("numrange"), decimal).simpleString()
    assert (
        delta_type(column("numeric", 10, 2), ColumnTypes(numeric="string")).typeName() == "string"
    )
    assert delta_type(column("json"), ColumnTypes(json="variant")).typeName() == "variant"
    assert delta_type(column("int4range"), ColumnTypes(text=True)).typeName() == "string"


def test_an_option_for_another_type_is_misplaced() -> None:
    assert [*misplaced(column("int4"), ColumnTypes(numeric="string"))] == [
        "numeric: the column is int4, not numeric"
    ]
    assert [*misplaced(column("text[]"), ColumnTypes(json="variant"))] == [
        "json: the column is text[], not json or jsonb"
    ]
    for value_type in ("numeric", "numeric[]", "nummultirange", "numrange[]"):
        assert not [*misplaced(column(value_type), ColumnTypes(numeric="decimal(5,1)"))]
    assert not [*misplaced(column("jsonb[]"), ColumnTypes(json="variant"))]
    assert not [*misplaced(column("int4"), ColumnTypes(text=True))]
