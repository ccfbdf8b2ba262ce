"""What all parts of the pipeline file are made of: sections, names and patterns."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict

from pgstream_dagster.patterns import TablePattern

MAX_NAME: Final = 63
"""Postgres cuts longer identifiers (NAMEDATALEN - 1)."""

MAX_ALIAS: Final = 200
"""Search engines take names of 255 bytes; a generation's number and marker are added."""

MAX_SINK: Final = 100
"""A sink's name is part of the names of files and of consumer groups."""


def _identifier(text: str) -> str:
    if not text or len(text.encode()) > MAX_NAME or "\0" in text:
        raise ValueError(f"must be 1 to {MAX_NAME} bytes")
    return text


def _alias(text: str) -> str:
    if not re.fullmatch(rf"[a-z0-9][a-z0-9_.-]{{0,{MAX_ALIAS - 1}}}", text):
        raise ValueError(
            f"must be 1 to {MAX_ALIAS} lower-case letters, digits, _, . or -, beginning with a"
            " letter or digit"
        )
    return text


def _sink_name(text: str) -> str:
    if not re.fullmatch(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_SINK - 1}}}", text):
        raise ValueError(
            f"must be 1 to {MAX_SINK} lower-case letters, digits, _ or -, beginning with a letter"
            " or digit"
        )
    return text


def _table_name(text: str) -> str:
    if not TablePattern.parse(text).is_exact:
        raise ValueError("must name one table: wildcards are not for an index")
    return text if "." in text else f"public.{text}"


def _pattern(text: str) -> str:
    TablePattern.parse(text)
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError("must be the name of an environment variable, not a value")
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
TableName = Annotated[str, AfterValidator(_table_name)]
Alias = Annotated[str, AfterValidator(_alias)]
SinkName = Annotated[str, AfterValidator(_sink_name)]
Identifier = Annotated[str, AfterValidator(_identifier)]
Variable = Annotated[str, AfterValidator(_variable)]
"""The name of an environment variable that holds a secret or an address."""


class Section(BaseModel):
    """A part of the file: frozen, no unknown keys, no guessing of types ("8" is no number)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
        use_attribute_docstrings=False,
    )
