"""
The second database against the source: its rows, as the sink's modifiers make them.

It holds no plain value of a masked column, and what joins on the source joins there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, TypeAlias

import msgspec
from psycopg import sql

from pgstream_dagster.demo.printing import problem
from pgstream_dagster.demo.targets import MASKED, Targets
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers import Modifiers
from pgstream_dagster.patterns import OWN_NAMESPACE
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.targets import modifiers
from pgstream_dagster.source.connect import Session, connect

DIGEST_BYTES: Final = 16

Row: TypeAlias = Sequence["str | None"]
"""The values of a row as Postgres prints them, in the order of the columns."""

JOINED: Final = b"select count(*) from public.flights join public.planes using (tailnum)"


def compare(pipeline: Pipeline, targets: Targets) -> tuple[str, str | None]:
    """What the database has, and how it differs from the source's rows; `None`: not at all."""
    missing = unknown = rows = 0
    config = pipeline.config.sink(MASKED)
    with (
        pipeline.open() as opened,
        closing(connect(pipeline.dsn)) as source,
        closing(connect(targets.masked_dsn)) as target,
    ):
        rules = modifiers(opened, config, targets.variables)
        assert rules is not None  # the pipeline file has them
        with closing(rules):
            for _, versions in opened.copied_relations().values():
                if versions[-1].namespace == OWN_NAMESPACE:
                    continue
                expected = multiset(masked(_rows(source, versions[-1]), versions[-1], rules))
                held = multiset(_rows(target, versions[-1]))
                rows += held.total()
                missing += (expected - held).total()
                unknown += (held - expected).total()
        has = f"{rows:,} rows, {_joined(target):,} flights join their planes by masked numbers"
    return has, problem({"rows missing": missing, "rows that the source does not have": unknown})


def masked(rows: Iterable[Row], schema: TableSchema, rules: Modifiers) -> Iterator[Row]:
    """Rows of a table as the modifiers make them."""
    names = [column.name for column in schema.columns]
    for values in rows:
        changed = rules.change(_read(schema, dict(zip(names, values, strict=True))))
        if changed is not None and changed.after is not None:
            yield tuple(changed.after.values())


def _read(schema: TableSchema, row: dict[str, str | None]) -> Change:
    """The row as if it was just copied."""
    place = (schema.epoch, Lsn(0), 0, Lsn(0))
    name = (schema.namespace, schema.name, schema.relation_id)
    return Change(*place, Op.READ.value, *name, schema, after=row)


def _rows(target: Session, schema: TableSchema) -> Iterator[Row]:
    """Every row as Postgres prints it; a cast to text would print a boolean in another way."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in schema.columns)
    query = sql.SQL("copy {} ({}) to stdout").format(
        sql.Identifier(schema.namespace, schema.name), columns
    )
    with target.cursor() as cursor, cursor.copy(query) as copy:
        yield from copy.rows()


def multiset(rows: Iterable[Row]) -> Counter[bytes]:
    """How often each row is there, by its digest: whole rows would take hundreds of MB."""
    encode = msgspec.json.encode
    return Counter(hashlib.blake2b(encode(row), digest_size=DIGEST_BYTES).digest() for row in rows)


def _joined(target: Session) -> int:
    [(count,)] = target.execute(JOINED).fetchall()
    return count
