"""What a target records of its tables, when the sink goes over to another change log."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.sinks.postgres import progress
from pgstream_dagster.sinks.postgres.progress import Position, Recorded, Relation
from tests.support.harness.sink_changes import version


def recorded(name: str, relation_id: int, epoch: int, since: Position) -> Recorded:
    schema = version(name, {"id": "integer"}, relation_id=relation_id, epoch=epoch)
    return Recorded(schema, since, is_complete=True)


def test_tables_of_another_log_are_before_all_that_this_one_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = [
        recorded("t", 5, 2, (2, 9_000, 1)),
        recorded("u", 5, 1, (1, 8_000, 0)),
        recorded("v", 6, 2, (0, 0, 0)),
    ]
    rows: dict[Relation, Recorded] = {progress.relation_of(t.schema): t for t in tables}

    def record(_target: Any, _session: Any, table: Recorded) -> None:
        assert rows.setdefault(progress.relation_of(table.schema), table) is table

    def forget(_target: Any, _session: Any, schema: TableSchema) -> None:
        del rows[progress.relation_of(schema)]

    monkeypatch.setattr(progress, "versions", lambda _target, _session: dict(rows))
    monkeypatch.setattr(progress, "record", record)
    monkeypatch.setattr(progress, "forget", forget)
    session = cast("Any", SimpleNamespace(transaction=nullcontext))
    for _ in range(2):  # also after a crash before the first change of this log
        progress.set_aside(cast("Any", None), session)
    assert {table.schema.name: (number, table.since) for number, table in rows.items()} == {
        "t": ((0, 5), (0, 9_000, 1)),
        "u": ((-1, 5), (-1, 8_000, 0)),
        "v": ((0, 6), (0, 0, 0)),
    }
