"""The options of a column of a typed table: what is wrong is named with its path."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.config.load import _problem as problem
from pgstream_dagster.config.section import Section


class Table(Section):
    """A section as the one of a table will be: columns by name."""

    columns: dict[str, ColumnTypes]


def problems(**column: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Table.model_validate({"columns": {"total": column}}, by_alias=True, by_name=False)
    return [problem(detail) for detail in caught.value.errors()]


def test_what_is_written_is_taken() -> None:
    options = ColumnTypes.model_validate({"numeric": "decimal( 20, 4 )", "json": "variant"})
    assert (options.decimal, options.is_variant, options.text) == ((20, 4), True, False)
    assert options.numeric == "decimal(20,4)"
    assert ColumnTypes(numeric="decimal(5)").decimal == (5, 0)
    assert ColumnTypes(numeric="string").decimal is None
    assert ColumnTypes() == ColumnTypes.model_validate({})


@pytest.mark.parametrize(
    ("numeric", "reason"),
    [
        ("double", "must be 'string', or 'decimal(p,s)' such as 'decimal(20,4)'"),
        ("decimal(5,-1)", "must be 'string', or 'decimal(p,s)' such as 'decimal(20,4)'"),
        ("decimal(39,2)", "the precision of a decimal must be 1 to 38"),
        ("decimal(0,0)", "the precision of a decimal must be 1 to 38"),
        ("decimal(5,6)", "the scale of a decimal must be 0 to its precision, 5"),
    ],
)
def test_a_wrong_decimal_is_named(numeric: str, reason: str) -> None:
    assert problems(numeric=numeric) == [f"columns.total.numeric: {reason}"]


def test_wrong_options_are_named() -> None:
    assert problems(numeric=5) == ["columns.total.numeric: must be text"]
    assert problems(json="text") == ["columns.total.json: must be 'string' or 'variant'"]
    assert problems(text=True, json="variant") == [
        "columns.total: text: true leaves nothing to 'json'; remove one of the two"
    ]
    assert problems(json_as="variant")[0].startswith("columns.total.json_as: unknown key")
