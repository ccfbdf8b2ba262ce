"""What a reader has read, compared with the source."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pyarrow as pa

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.tables.columns import OWN, Layout, layout
from pgstream_dagster.tables.forms import STRING, form_of
from pgstream_dagster.tables.relations import copied_relations
from pgstream_dagster.values.types import LakeType
from tests.readers.conftest import Site
from tests.support.harness import oracle, rows
from tests.support.harness.rows import PINNED
from tests.support.reference import fold
from tests.support.reference.change import Change, Position
from tests.support.reference.typed import printed, readable


def paid(dsn: str) -> str:
    """Count and sum as the source gives them."""
    query = "select count(*), sum(amount) from orders where state = 'paid' and id > 100"
    with psycopg.connect(dsn) as connection:
        [(count, total)] = connection.execute(query).fetchall()
    return f"{count} {total}"


def versions_of(pipeline: Pipeline, relation: str) -> list[TableSchema]:
    """The versions of a relation by its newest name."""
    with pipeline.open() as opened:
        relations = copied_relations(opened, opened.watermark() or Lsn(0))
    [copied] = [c for c in relations.values() if c.newest.name == relation]
    return list(copied.versions)


def assert_is_source(rows_read: pa.Table, relation: str, pipeline: Pipeline) -> None:
    """Each value, read by Postgres as its column's type, is the source's."""
    schema = versions_of(pipeline, relation)[-1]
    config = pipeline.config.tables
    assert config is not None
    options = config.types.get(schema.full_name)
    columns = layout(schema, options.columns if options else {}, is_mapped=config.column_mapping)
    assert set(rows_read.column_names) == set(columns.names)
    assert as_source_prints(pipeline.dsn, rows_read, columns) == rows.of_table(
        pipeline.dsn, schema.relation_id
    )
    assert all(rows_read[name].null_count == 0 for name in OWN if name != "_rescued")


def as_source_prints(dsn: str, rows_read: pa.Table, columns: Layout) -> rows.Rows:
    """The rows as Postgres prints them."""
    kept = [image(texts) or {} for texts in rows_read["_rescued"].to_pylist()]
    texts: dict[str, list[str | None]] = {}
    with psycopg.connect(dsn) as connection:
        for statement in PINNED:
            connection.execute(statement)
        for column in columns.columns.values():
            form = columns_form(column)
            values = rows_read[column.name].to_pylist()
            inputs = [
                rescued.get(column.name, readable(form, value))
                for rescued, value in zip(kept, values, strict=True)
            ]
            texts[column.source.name] = printed(connection, column.source.type_name, inputs)
    entries = zip(*texts.values(), strict=True)
    return Counter(fold.entries(dict(zip(texts, row, strict=True))) for row in entries)


def columns_form(column: Any) -> Any:
    """The form of a typed column; a variant was read as the text of its JSON."""
    form = form_of(column.source, column.options)
    return STRING if form.lake is LakeType.VARIANT else form


def assert_folds_to_source(log: pa.Table, site: Site) -> None:
    """The log that was read folds to the rows of the source, by the reference fold."""
    schemas = rows.schemas(oracle.folder_of(site.pipeline.lake.schema_log))
    changes: dict[int, list[Change]] = {}
    for change in map(as_change, log.to_pylist()):
        if change.relation_id is not None:
            changes.setdefault(change.relation_id, []).append(change)
    expected = rows.of_source(site.dsn, ['"Many Types"', "orders", "documents"])
    assert changes.keys() == expected.keys()
    for relation_id, (_, source) in expected.items():
        of_one = changes[relation_id]
        rows.assert_each_position_once(of_one)
        folded = fold.fold(of_one, rows.in_order(of_one, schemas))
        assert Counter(fold.entries(row.image) for row in folded) == source


def as_change(row: dict[str, Any]) -> Change:
    """A row of the log that a library has read."""
    return Change(
        Position(row["epoch"], Lsn(row["commit_lsn"]), row["ordinal"]),
        Lsn(row["end_lsn"]),
        Op(row["op"]),
        *(row[name] for name in ("namespace", "relation", "relation_id", "schema_id")),
        key=None if row["key"] is None else tuple(row["key"]),
        old_key=None if row["old_key"] is None else tuple(row["old_key"]),
        before=image(row["before"]),
        after=image(row["after"]),
    )


def image(value: Any) -> dict[str, str | None] | None:
    """A map, whether a library gives it as pairs or as structs."""
    if value is None:
        return None
    return dict(tuple(pair.values()) if isinstance(pair, dict) else pair for pair in value)
