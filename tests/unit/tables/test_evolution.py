"""How the columns of a typed table become those of a newer version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import types as T

from pgstream_dagster.config.column_types import ColumnTypes
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables.columns import Layout, column_names, existing, layout
from pgstream_dagster.tables.evolution import evolution
from pgstream_dagster.tables.kept import kept_columns

Columns = Mapping[int, tuple[str, T.DataType]]


def column(attnum: int, name: str, value_type: str = "text") -> Column:
    return Column(name, attnum, 25, value_type, value_type=value_type)


def desired(*columns: Column, key: tuple[str, ...] = ()) -> Layout:
    schema = TableSchema(1, 7, "public", "t", ReplicaIdentity.DEFAULT, columns, key)
    return layout(schema, {})


def columns_of(*columns: Column) -> Columns:
    of_layout = desired(*columns)
    return {n: (c.name, of_layout.types[n]) for n, c in of_layout.columns.items()}


def applied(before: Columns, statements: tuple[str, ...]) -> set[str]:
    """The names after ALTER TABLE statements, of which none may find its name taken."""
    names = {name for name, _ in before.values()}
    for statement in statements:
        words = statement.replace("`", "").replace("(", " ").split()
        name = words[2]
        if words[0] == "ADD":
            assert name.casefold() not in {n.casefold() for n in names}
            names.add(name)
            continue
        names.remove(name)
        if words[0] == "RENAME":
            assert words[4].casefold() not in {n.casefold() for n in names}
            names.add(words[4])
    return names


def test_the_same_columns_need_nothing() -> None:
    a = column(1, "a")
    assert evolution(columns_of(a), desired(a), {}).statements == ()


def test_columns_are_swapped_from_every_step_of_a_swap_on() -> None:
    before = columns_of(column(1, "a"), column(2, "b"), column(3, "c"))
    after = desired(column(1, "b"), column(2, "a"), column(3, "c"))
    statements = evolution(before, after, {}).statements
    for steps in range(len(statements) + 1):
        names = dict(before)
        for statement in statements[:steps]:
            _, _, old, _, new = statement.replace("`", "").split()
            [attnum] = [n for n, (name, _) in names.items() if name == old]
            names[attnum] = new, names[attnum][1]
        rest = evolution(names, after, {})
        assert applied(names, rest.statements) == {"a", "b", "c"}


def test_a_dropped_name_is_free_for_another_column() -> None:
    before = columns_of(column(1, "a"), column(2, "b"))
    plan = evolution(before, desired(column(2, "a"), column(3, "b"), key=("a",)), {3: None})
    assert plan.statements
    assert applied(before, plan.statements) == {"a", "b"}
    assert plan.vacated == ()  # every text is one


def test_a_clustered_table_is_not_clustered_before_a_column_is_dropped() -> None:
    before = columns_of(column(1, "a"), column(2, "b"))
    plan = evolution(before, desired(column(1, "a"), key=("a",)), {}, is_clustered=True)
    assert plan.statements == ("CLUSTER BY NONE", "DROP COLUMN `b`")
    renamed = desired(column(1, "a"), column(2, "c"))
    assert evolution(before, renamed, {}, is_clustered=True).statements == (
        "RENAME COLUMN `b` TO `c`",
    )


def test_a_table_without_a_key_is_rebuilt_when_a_column_is_dropped() -> None:
    before = columns_of(column(1, "a"), column(2, "b"))
    assert evolution(before, desired(column(1, "a")), {}).must_rebuild
    assert not evolution(before, desired(column(1, "a"), column(2, "c")), {}).must_rebuild


def test_names_that_differ_by_case_are_one_to_spark() -> None:
    before = columns_of(column(1, "a"), column(2, "b"))
    plan = evolution(before, desired(column(1, "B"), column(2, "a")), {})
    assert applied(before, plan.statements) == {"B", "a"}


def test_another_type_rebuilds_and_a_default_or_a_wider_type_rewrites() -> None:
    a, b = column(1, "a"), column(2, "b")
    assert evolution(columns_of(a), desired(column(1, "a", "int4")), {}).must_rebuild
    of_default = evolution(columns_of(a), desired(a, b), {2: "7"})
    assert (of_default.must_rewrite, of_default.must_rebuild) == (True, False)
    narrow, wide = column(1, "a", "int4"), column(1, "a", "int8")
    assert evolution(columns_of(narrow), desired(wide), {}).must_rewrite
    assert evolution(columns_of(wide), desired(narrow), {}).must_rebuild
    assert evolution(columns_of(a), desired(a, b), {2: None}).statements


def test_a_column_whose_texts_may_be_rescued_is_vacated_with_its_name_or_type() -> None:
    a, day, number = column(1, "a"), column(2, "day", "date"), column(3, "n", "float4")
    before = columns_of(a, day, number)
    assert evolution(before, desired(a, key=("a",)), {}).vacated == ("day", "n")
    renamed = desired(column(1, "b"), column(2, "when", "date"), number)
    assert evolution(before, renamed, {}).vacated == ("day",)
    wider = desired(a, day, column(3, "n", "float8"))
    assert evolution(before, wider, {}).vacated == ("n",)


def test_a_type_that_needs_a_feature_of_the_table_rewrites_once() -> None:
    a, b = column(1, "a"), column(2, "b", "timestamp")
    c = column(3, "c", "timestamp[]")
    assert evolution(columns_of(a), desired(a, b), {}).must_rewrite
    assert not evolution(columns_of(a, b), desired(a, b, c), {}).must_rewrite


def test_the_columns_of_a_table_are_read_from_their_comments() -> None:
    fields = [
        T.StructField("a", T.StringType(), metadata={"comment": "attnum 3"}),
        T.StructField("_epoch", T.IntegerType()),
    ]
    assert existing(fields) == {3: ("a", T.StringType())}


def test_no_column_has_a_name_of_ours_or_of_another() -> None:
    names = [column(1, "_epoch"), column(2, "A"), column(3, "a"), column(4, "_PGSTREAM_x")]
    assert column_names(names) == {1: "epoch_1", 2: "A", 3: "a_3", 4: "PGSTREAM_x_4"}


def test_a_key_that_spark_cannot_compare_is_text() -> None:
    schema = TableSchema(
        1, 7, "public", "t", ReplicaIdentity.DEFAULT, (column(1, "k", "jsonb"),), ("k",)
    )
    variant = ColumnTypes(json="variant")
    assert layout(schema, {"k": variant}).types == {1: T.StringType()}


def test_former_types_that_begin_elsewhere_by_other_options_are_taken_from_the_log() -> None:
    """The last integer is not the last decimal, and the last text not the last document."""
    key = column(1, "k")

    def retyped(*types: str, options: ColumnTypes | None = None) -> Layout:
        schemas = [
            TableSchema(1, 7, "public", "t", ReplicaIdentity.DEFAULT, (key, second), ("k",))
            for type_ in types
            for second in [replace(column(2, "a", type_), type_oid=sum(type_.encode()))]
        ]
        dated = [(Lsn(10 * n), schema) for n, schema in enumerate(schemas)]
        chosen = {} if options is None else {"a": options}
        return layout(schemas[-1], chosen, kept=kept_columns(dated, chosen))

    def has(made: Layout) -> Columns:
        return {n: (c.name, made.types[n]) for n, c in made.columns.items()}

    decimal = ColumnTypes(numeric="decimal(20,4)")
    numbers, decimals = (
        retyped("int4", "numeric", "text"),
        retyped("int4", "numeric", "text", options=decimal),
    )
    assert [k.column.value_type for k in numbers.kept] == ["int4"]
    assert [k.column.value_type for k in decimals.kept] == ["numeric"]
    assert evolution(has(numbers), decimals, {}).must_rebuild
    variant = ColumnTypes(json="variant")
    documents = retyped("text", "jsonb", "int4"), retyped("text", "jsonb", "int4", options=variant)
    texts, variants = documents
    assert len(texts.kept) == 1
    assert len(variants.kept) == 2
    assert evolution(has(texts), variants, {}).must_rebuild
    assert evolution(has(variants), texts, {}).must_rebuild
    without = retyped("int4")
    assert evolution(has(variants), without, {}).statements == (
        "DROP COLUMN `a__v1`",
        "DROP COLUMN `a__v2`",
    )
