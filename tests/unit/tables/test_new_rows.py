"""Which tables are typed together, by their columns and by what their changes need."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables import new_rows
from pgstream_dagster.tables.columns import Layout, layout
from pgstream_dagster.tables.increment import Size
from pgstream_dagster.tables.new_rows import groups

SIZE = Size(rows=9, text_bytes=90)


def of_columns(
    key_type: str = "int4", name: str = "note", options: ColumnTypes | None = None
) -> Layout:
    columns = [
        Column("id", 1, 23, key_type, value_type=key_type),
        Column(name, 2, 3802, "jsonb", value_type="jsonb"),
    ]
    schema = TableSchema(1, 7, "public", "t", ReplicaIdentity.DEFAULT, columns, ("id",))
    return layout(schema, {} if options is None else {name: options})


def together(tables: dict[int, tuple[Layout, Size]]) -> list[list[int]]:
    """The relations of each group."""
    by_group = dict[int, list[int]]()
    for relation_id, group in groups(cast("Any", None), tables, 1).items():
        by_group.setdefault(id(group), []).append(relation_id)
    return list(by_group.values())


def test_tables_with_the_same_columns_are_typed_together() -> None:
    tables = {n: (of_columns(), SIZE) for n in (1, 2, 3)}
    assert together(tables | {4: (of_columns(name="remarks"), SIZE)}) == [[1, 2, 3]]


@pytest.mark.parametrize(
    "columns",
    [of_columns("float8"), of_columns(options=ColumnTypes(json="variant"))],
    ids=["keys that only Spark compares", "values that Arrow does not have"],
)
def test_some_types_are_typed_alone(columns: Layout) -> None:
    assert together(dict.fromkeys((1, 2), (columns, SIZE))) == []


def test_rows_that_take_values_from_rows_before_are_typed_alone() -> None:
    referring = Size(rows=9, text_bytes=90, referring_rows=1, referred=["note"])
    assert together({n: (of_columns(), s) for n, s in enumerate([SIZE, SIZE, referring])}) == [
        [0, 1]
    ]


def test_what_has_too_many_bytes_is_typed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_rows, "TOGETHER_BYTES", 1_500)
    large = Size(rows=9, text_bytes=2_000)
    assert together({n: (of_columns(), s) for n, s in enumerate([SIZE, large, SIZE])}) == [[0, 2]]
