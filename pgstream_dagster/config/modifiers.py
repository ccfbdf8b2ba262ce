"""The keys of a modifier: what happens to the columns of changes on their way."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from pgstream_dagster.config.section import Identifier, Pattern, Section
from pgstream_dagster.config.transformers import ColumnRule, Transformer


def _empty_rule(rule: object) -> object:
    """`id:` with nothing behind it is the rule that lets the column pass."""
    return {} if rule is None else rule


def _null(value: object) -> object:
    """YAML reads `null` as no value; here it is a word."""
    return "null" if value is None else value


Rules = dict[Identifier, Annotated[ColumnRule, BeforeValidator(_empty_rule)]]
"""Column to rule."""

NEW_COLUMNS: Final = "pass"
ON_ERROR: Final = "fail"
"""NULL or the original value in place of a result would be a silent loss, or a leak."""


class ModifierConfig(Section):
    """What happens to the columns of some tables; source, indices and sinks name modifiers."""

    transform: dict[Pattern, Rules] = Field(
        default_factory=dict,
        description="Table or pattern to column to rule: `{public.customers: {email: {name:"
        " email}}}`; see [transformers](transformers.md). A table's own name goes over patterns.",
    )
    drop: dict[Pattern, Annotated[tuple[Identifier, ...], Field(min_length=1, strict=False)]] = (
        Field(
            default_factory=dict,
            description="Table or pattern to the columns that are left out.",
        )
    )
    new_columns: Literal["pass", "drop", "stop"] = Field(
        default=NEW_COLUMNS,
        description="What happens to columns that no rule names, such as those added later, of the"
        " tables under `transform`: they pass, are left out, or stop what names the modifier.",
    )
    on_error: Annotated[Literal["fail", "null", "pass-through"], BeforeValidator(_null)] = Field(
        default=ON_ERROR,
        description="What happens when a value cannot be transformed: what names the modifier"
        " stops, the value becomes NULL, or it passes as it is, unmasked.",
    )

    @model_validator(mode="after")
    def _does_something(self) -> ModifierConfig:
        if not self.transform and not self.drop:
            raise ValueError("must have 'transform' or 'drop'")
        return self

    def rules(self) -> Iterator[Transformer]:
        """Every rule, of whatever table and column."""
        for columns in self.transform.values():
            yield from columns.values()

    def rules_of(self, names: Collection[str]) -> Iterator[Transformer]:
        """The rules of columns of these names, of whatever table."""
        for columns in self.transform.values():
            yield from (rule for name, rule in columns.items() if name in names)

    def variables(self) -> set[str]:
        """The environment variables that rules name."""
        given = (getattr(r, n, None) for r in self.rules() for n in ("key_hex", "postgres_url"))
        return {name for name in given if name is not None}
