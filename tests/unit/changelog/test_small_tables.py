"""Which tables are compared with the log together: small ones, whose rows all have one key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgstream_dagster.changelog.small_tables import SMALL_ROWS, History, shared
from pgstream_dagster.changelog.spans import Span
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import COPY_ORDINAL
from pgstream_dagster.schema.table import TableSchema
from tests.support.changes import schema

NEWEST = schema({"id": "int8", "region": "text", "note": "text"})
WIDER = schema({"id": "int8", "region": "text", "note": "text", "more": "text"})
REKEYED = replace(NEWEST, key=("region",))
KEYLESS = replace(NEWEST, key=())
COPY = Place(Lsn(100), COPY_ORDINAL)


def history(*versions: TableSchema, used: int = 0, **facts: int) -> History:
    """One whose rows are of its newest version, and of so many before it."""
    ids = frozenset(version.schema_id for version in versions[-1 - used :])
    return History(versions, Span(COPY, is_copied=True, schema_ids=ids, **facts))


@pytest.mark.parametrize(
    "relation",
    [
        history(NEWEST),
        history(NEWEST, WIDER, used=1),
        history(KEYLESS, NEWEST),  # copied again since
        history(REKEYED, NEWEST),
        history(NEWEST, copied_rows=SMALL_ROWS),
        History([NEWEST], Span(COPY, is_copied=True)),  # it is empty
        History(
            [NEWEST, WIDER], Span(COPY, is_copied=True, schema_ids=frozenset([NEWEST.schema_id]))
        ),
    ],
)
def test_few_rows_of_one_key_are_folded_with_others(relation: History) -> None:
    assert relation.is_small


@pytest.mark.parametrize(
    "relation",
    [
        history(KEYLESS),
        history(KEYLESS, NEWEST, used=1),
        history(REKEYED, NEWEST, used=1),
        history(NEWEST, KEYLESS, used=1),
        History([NEWEST], Span(COPY, is_copied=True, schema_ids=frozenset([1]))),
        History([NEWEST], Span()),
        history(NEWEST, copied_rows=SMALL_ROWS, changed_rows=1),
        history(NEWEST, has_moves=True),
    ],
)
def test_others_are_folded_alone(relation: History) -> None:
    assert not relation.is_small


def test_one_has_nothing_to_share() -> None:
    small, other = history(NEWEST), history(KEYLESS)
    assert shared([small, other]) == []
    assert shared([small, other, small]) == [small, small]
