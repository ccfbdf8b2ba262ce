"""A table of people, and what the catalog says of a table."""

from __future__ import annotations

from pgstream_dagster.schema.ddl import DdlColumn, DdlTable
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema

ID = Column("id", 1, 20, "bigint", not_null=True, value_type="int8")
NAME = Column("name", 2, 25, "text", value_type="text")
AGE = Column("age", 3, 23, "integer", value_type="int4")
PEOPLE = TableSchema(
    epoch=1,
    relation_id=16_384,
    namespace="public",
    name="people",
    identity=ReplicaIdentity.DEFAULT,
    columns=(ID, NAME, AGE),
    key=("id",),
)


def described(schema: TableSchema, **columns: dict[str, object]) -> DdlTable:
    """The catalog's description of a version, with more about some columns."""
    plain = {"may_be_null": False, "generated": "", "identity": "", "comment": None, "labels": None}
    return DdlTable(
        schema.relation_id,
        *(schema.namespace, schema.name, "r", "p"),
        columns=tuple(
            DdlColumn(
                attnum=column.attnum,
                name=column.name,
                type_oid=column.type_oid,
                typmod=column.typmod,
                type_name=column.type_name,
                value_type=column.value_type,
                not_null=column.not_null,
                default=column.default,
                missing=column.missing,
                **(plain | columns.get(column.name, {})),
            )
            for column in schema.columns
        ),
    )
