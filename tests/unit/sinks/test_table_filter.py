"""Which tables a sink receives; the cases are those of pgstream's filter."""

from __future__ import annotations

import pytest

from pgstream_dagster.config import SinkConfig
from pgstream_dagster.sinks.table_filter import TableFilter

ALL = ["*.*"]


@pytest.mark.parametrize(
    ("tables", "exclude", "schema_only", "table", "rows", "schema"),
    [
        (["shop.orders"], [], [], "shop.orders", True, True),
        (ALL, [], [], "pgstream.streams", False, False),
        (["pgstream.*"], [], [], "pgstream.streams", True, True),
        (["pgstream.events"], [], [], "pgstream.events", True, True),
        (['"pgstream".events'], [], [], "pgstream.events", True, True),
        (["shop.orders"], [], [], "shop.other", False, False),
        (["*.orders"], [], [], "any.orders", True, True),
        (["orders"], [], [], "public.orders", True, True),
        (["orders"], [], [], "shop.orders", False, False),
        (["users", "public.orders", "public.*", "*.*"], [], [], "any.thing", True, True),
        (["shop.*"], ["shop.orders"], [], "shop.orders", False, False),
        (["shop.*"], ["shop.orders"], [], "shop.other", True, True),
        (ALL, ["shop.orders"], [], "shop.orders", False, False),
        (ALL, ["shop.orders"], [], "shop.other", True, True),
        (ALL, [], ["reports.*"], "reports.daily", False, True),
        (["shop.*"], [], ["reports.*"], "reports.daily", False, True),
        (["public.orders"], [], ["public.*"], "public.orders", True, True),
        (["public.orders"], [], ["public.*"], "public.other", False, True),
        (["public.*"], [], ["public.audit_log"], "public.audit_log", False, True),
        (["public.*"], [], ["public.audit_log"], "public.orders", True, True),
        (["public.audit_log"], [], ["public.audit_log"], "public.audit_log", False, True),
        (ALL, ["public.audit_log"], ["public.audit_log"], "public.audit_log", False, False),
    ],
)
def test_rows_and_schema_of_a_table(tables, exclude, schema_only, table, rows, schema):
    subject = TableFilter(tables, exclude, schema_only)
    namespace, name = table.split(".")
    assert (subject.has_rows(namespace, name), subject.has_schema(namespace, name)) == (
        rows,
        schema,
    )


def test_a_look_at_one_table_changes_nothing_for_another():
    subject = TableFilter(["public.orders", "*.audit_log"], [], ["public.audit_log"])
    for _ in range(2):
        assert subject.has_rows("public", "orders")
        assert not subject.has_rows("public", "audit_log")
        assert subject.has_rows("other", "audit_log")


@pytest.mark.parametrize("key", ["tables", "exclude", "schema_only"])
def test_a_name_of_three_parts_is_refused(key):
    with pytest.raises(ValueError, match="is no table pattern"):
        SinkConfig.model_validate({"stdout": {}, key: ["a.b.c"]})


def test_patterns_are_taken_as_they_are_written_and_none_are_refused():
    written = ("users", "public.orders", "public.*", "*.*")
    config = SinkConfig.model_validate(
        {"stdout": {}, "tables": written, "exclude": written, "schema_only": written}
    )
    assert (config.tables, config.exclude, config.schema_only) == (written, written, written)
    with pytest.raises(ValueError, match="tables"):
        SinkConfig.model_validate({"stdout": {}, "tables": []})
