"""Which columns keep what another one was before its type changed."""

from __future__ import annotations

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables.kept import KeptColumn, kept_columns

ID = Column("id", 1, 23, "integer", value_type="int4")


def version(*columns: Column, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(1, 7, "public", "t", ReplicaIdentity.DEFAULT, (ID, *columns), key)


def amount(value_type: str, name: str = "amount", attnum: int = 2) -> Column:
    return Column(name, attnum, 25, value_type, value_type=value_type)


def kept(*versions: TableSchema, options: ColumnTypes | None = None) -> list[KeptColumn]:
    history = [(Lsn(10 * n), schema) for n, schema in enumerate(versions, start=1)]
    return kept_columns(history, {} if options is None else {"amount": options})


def test_each_type_leaves_a_column_of_the_values_while_it_held() -> None:
    former = kept(
        version(amount("int4", "total")),
        version(amount("int8", "total")),
        version(amount("text")),
        version(amount("bool")),
    )
    assert [(k.name, k.number, k.column.value_type, k.since, k.until) for k in former] == [
        ("amount__v1", 100_002, "int8", Lsn(10), Lsn(30)),
        ("amount__v2", 200_002, "text", Lsn(30), Lsn(40)),
    ]
    assert set(former[0].names.values()) == {"total"}


def test_a_wider_type_and_one_that_the_file_says_leave_none() -> None:
    assert kept(version(amount("int4")), version(amount("int8"))) == []
    as_text = ColumnTypes(text=True)
    assert kept(version(amount("int4")), version(amount("date")), options=as_text) == []


def test_columns_that_are_gone_and_rows_that_cannot_be_followed_leave_none() -> None:
    assert kept(version(amount("int4")), version(amount("date", attnum=3))) == []
    assert kept(version(amount("int4"), key=()), version(amount("date"), key=())) == []
    other_key = version(amount("date"), key=("amount",))
    assert kept(version(amount("int4")), version(amount("date")), other_key) == []
