"""Which columns keep what another one was before its type changed."""

from __future__ import annotations

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables.kept import KeptColumn, kept_columns

OIDS = {"bool": 16, "int8": 20, "int4": 23, "text": 25, "date": 1082, "numeric": 1700}
ID = Column("id", 1, 23, "integer", value_type="int4")


def version(*columns: Column, key: tuple[str, ...] = ("id",), number: Column = ID) -> TableSchema:
    return TableSchema(1, 7, "public", "t", ReplicaIdentity.DEFAULT, (number, *columns), key)


def amount(value_type: str, name: str = "amount", attnum: int = 2) -> Column:
    return Column(name, attnum, OIDS[value_type], value_type, value_type=value_type)


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


def test_rows_whose_key_is_written_differently_leave_none() -> None:
    """The log has a gap there: a row may have the key that another one had."""
    int_, text = version(amount("int4")), version(amount("text"))
    as_bigint = Column("id", 1, 20, "bigint", value_type="int8")
    as_text = Column("id", 1, 25, "text", value_type="text")
    of_bigint = version(amount("text"), number=as_bigint)
    assert [k.name for k in kept(int_, text, of_bigint)] == ["amount__v1"]
    assert [k.name for k in kept(int_, of_bigint)] == ["amount__v1"]
    of_text = version(amount("text"), number=as_text)
    assert kept(int_, text, of_text) == kept(int_, of_text) == []
    later = version(amount("bool"), number=as_text)
    [former] = kept(int_, text, of_text, later)
    assert (former.name, former.since, former.until) == ("amount__v1", Lsn(30), Lsn(40))


def test_versions_of_a_transaction_that_was_sent_again_count_once() -> None:
    int_, text, bool_ = (version(amount(type_)) for type_ in ("int4", "text", "bool"))

    def names(*within: TableSchema) -> list[str]:
        history = [(Lsn(10), int_), *((Lsn(20), schema) for schema in within)]
        return [f"{k.name} {k.column.value_type}" for k in kept_columns(history, {})]

    both = ["amount__v1 int4", "amount__v2 text"]
    assert names(text, bool_) == names(text, bool_, text, bool_) == both
    assert names(text, int_) == names(text, int_, text, int_) == both
    assert names(text) == names(text, int_, text) == both[:1]
