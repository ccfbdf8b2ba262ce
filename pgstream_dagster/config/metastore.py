"""The keys of a Hive metastore, in which typed tables are registered by name."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from pgstream_dagster.config.section import Section, Variable

MAX_HIVE_NAME: Final = 128
"""The length that the metastore's own schema has for names of databases and tables."""

_ADDRESS: Final = r"thrift://[^\s/,@]+:\d{1,5}"


def is_address(text: str) -> bool:
    """Whether a text is the address of a metastore, or of several that share their content."""
    return re.fullmatch(rf"{_ADDRESS}(,{_ADDRESS})*", text) is not None


def _uri(text: str) -> str:
    if not is_address(text):
        raise ValueError("must be thrift://host:port, or several with commas")
    return text


def _hive_name(text: str) -> str:
    if not re.fullmatch(rf"[a-z0-9_]{{1,{MAX_HIVE_NAME}}}", text):
        raise ValueError(f"must be 1 to {MAX_HIVE_NAME} lower-case letters, digits or _")
    return text


HiveName = Annotated[str, AfterValidator(_hive_name)]
"""What Hive, Spark and Trino take as the name of a database or table without quotes."""


class MetastoreConfig(Section):
    """A Hive metastore, where Spark and Trino find typed tables by name."""

    uri: Annotated[str, AfterValidator(_uri)] | None = Field(
        default=None,
        description="The metastore's address: `thrift://host:9083`; of several that share their"
        " content, all with commas.",
    )
    uri_from: Variable | None = Field(
        default=None, description="The variable with it, in place of `uri`."
    )
    database: HiveName = Field(
        description="The metastore's database for the tables; it is made if there is none."
    )
    names: dict[str, HiveName] = Field(
        default_factory=dict,
        description="Typed table to its name there, in place of the one that is made of its own:"
        " lower case, with `_` for every other character than a letter or a digit.",
    )

    @model_validator(mode="after")
    def _addressed_once(self) -> Self:
        if (self.uri is None) == (self.uri_from is None):
            raise ValueError("needs either 'uri' or 'uri_from'")
        return self

    def name_of(self, table: str) -> str:
        """The name of a typed table in the metastore; several may have one."""
        return self.names.get(table) or re.sub(r"[^a-z0-9]", "_", table.lower())[:MAX_HIVE_NAME]
