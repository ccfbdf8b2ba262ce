"""Which settings of the pipeline file name tables."""

from __future__ import annotations

from pgstream_dagster.config import parse
from pgstream_dagster.config.named_tables import named_tables

FILE = """
pipeline: shop
search:
  orders: {table: orders}
source: {modifiers: [landed]}
modifiers:
  landed: {drop: {people: [note]}}
  masked: {transform: {people: {email: {name: email}}}, drop: {audit.*: [note]}}
sinks:
  replica: {stdout: {}, tables: [shop.*, people], exclude: [secrets], schema_only: [big]}
  events: {stdout: {}, outbox: {stream: 1}}
tables: {include: [shop.a], exclude: [shop.b], history: [shop.c], types: {shop.d: {history: true}}}
"""


def test_every_setting_that_names_tables_is_there() -> None:
    assert list(named_tables(parse(FILE))) == [
        ("search.orders.table", "public.orders"),
        ("modifiers.masked.transform", "people"),
        ("modifiers.masked.drop", "audit.*"),
        ("sinks.replica.tables", "shop.*"),
        ("sinks.replica.tables", "people"),
        ("sinks.replica.exclude", "secrets"),
        ("sinks.replica.schema_only", "big"),
        ("tables.include", "shop.a"),
        ("tables.exclude", "shop.b"),
        ("tables.history", "shop.c"),
        ("tables.types", "shop.d"),
    ]


def test_a_file_without_them_names_none() -> None:
    assert list(named_tables(parse("pipeline: shop"))) == []
    assert set(named_tables(parse("{pipeline: shop, tables: {}}"))) == {("tables.include", "*.*")}
