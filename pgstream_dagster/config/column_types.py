"""The keys that say how the values of a column are kept in a typed table."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pgstream_dagster.config.section import Section

MAX_PRECISION: Final = 38
"""Digits of a decimal in Spark, Delta and most readers of it: 128 bits."""

_DECIMAL: Final = re.compile(r"decimal\( *([0-9]{1,3}) *(?:, *([0-9]{1,3}) *)?\)")


def _numeric(text: str) -> str:
    if text == "string":
        return text
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise ValueError("must be 'string', or 'decimal(p,s)' such as 'decimal(20,4)'")
    precision, scale = int(match[1]), int(match[2] or 0)
    if not 1 <= precision <= MAX_PRECISION:
        raise ValueError(f"the precision of a decimal must be 1 to {MAX_PRECISION}")
    if scale > precision:
        raise ValueError(f"the scale of a decimal must be 0 to its precision, {precision}")
    return f"decimal({precision},{scale})"


class ColumnTypes(Section):
    """How the values of one column are kept; what is left out follows from the column's type."""

    numeric: Annotated[str, AfterValidator(_numeric)] | None = Field(
        default=None,
        description="Of a column of numeric, or of its arrays and ranges: `decimal(p,s)`, or"
        " `string`. Without it: a decimal if the column has a precision of 38 digits or less, else"
        " a string. A value that the decimal cannot hold is kept as text in `_rescued`.",
    )
    json_as: Literal["string", "variant"] = Field(
        default="string",
        alias="json",
        description="Of a column of json or jsonb, or of arrays of them: `string`, or `variant`,"
        " which not every reader of Delta tables knows. A document that has numbers with an"
        " exponent or more than 37 digits is kept as text in `_rescued` then.",
    )
    text: bool = Field(
        default=False,
        description="Keep the values as Postgres prints them, whatever the column's type is.",
    )

    @model_validator(mode="after")
    def _text_alone(self) -> Self:
        others = [*(["numeric"] if self.numeric else []), *(["json"] if self.is_variant else [])]
        if self.text and others:
            raise ValueError(f"text: true leaves nothing to {others[0]!r}; remove one of the two")
        return self

    @property
    def is_variant(self) -> bool:
        """Whether JSON becomes a variant."""
        return self.json_as == "variant"

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of the decimal that `numeric` requests."""
        match = _DECIMAL.fullmatch(self.numeric or "")
        return (int(match[1]), int(match[2])) if match else None
