"""Tables as Dagster shows them: their location and their columns. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import dagster as dg

from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.search.fields import Field

SCHEMA: Final = "dagster/column_schema"
"""The metadata that the UI shows as a table's columns."""

LOG_COLUMNS: Final = dg.TableSchema(
    [dg.TableColumn(column.name, str(column.type)) for column in CHANGES]
)
"""Of the change log."""


def location(uri: str) -> dict[str, str]:
    """The metadata by which the UI and catalogs identify a table of the lake."""
    return {"dagster/uri": uri, "dagster/table_name": uri.rpartition("/")[2]}


def table_columns(schema: TableSchema) -> dg.TableSchema:
    """The columns of a relation, with the types that Postgres prints; the key's are marked."""
    return dg.TableSchema(
        [
            dg.TableColumn(
                column.name,
                column.type_name,
                description="part of the key" if column.name in schema.key else None,
                constraints=dg.TableColumnConstraints(nullable=not column.not_null),
            )
            for column in schema.columns
        ]
    )


def index_columns(fields: Iterable[Field]) -> dg.TableSchema:
    """The fields of a document, with the types they are mapped to and the columns they show."""
    return dg.TableSchema(
        [
            dg.TableColumn(
                field.name,
                str(field.mapping.get("type", "object")),
                description=None if field.name == field.column else f"shows {field.column}",
            )
            for field in fields
        ]
    )
