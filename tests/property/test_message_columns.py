"""Messages and records of many changes at once are those of each change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.change import Change, Image, LoggedChanges
from pgstream_dagster.schema.changes import COPY_ORDINAL, DIFFERENCE_ORDINAL, Op
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.sinks import columns
from pgstream_dagster.sinks.envelope import Envelope
from pgstream_dagster.sinks.kafka.hooks import hooks_of
from pgstream_dagster.sinks.kafka.messages import Records
from pgstream_dagster.values.columns import rendered
from pgstream_dagster.values.exact import exact
from pgstream_dagster.values.kinds import KINDS, Kind, kind_of
from tests.support.changes import logged
from tests.support.reference import texts
from tests.support.reference.strategies import EXAMPLES

SEEDS = st.integers(0, 1 << 32)
TYPES = [*KINDS, *(f"{element}[]" for element in KINDS), ""]
NAMES = ("id", "b", 'c"\\', "d.é", "e:\n", "f,")
UNUSUAL = ("", "0", "-0", "007", "+1", "1e400", "NaN", "Infinity", "t", "true", "\n1", "1\n", "[")


def a_value(random: Random, value_type: str) -> str | None:
    """NULL, a value of the type, or any text."""
    chance = random.random()
    if chance < 0.15:
        return None
    if chance < 0.25:
        return random.choice(UNUSUAL)
    if chance < 0.35:
        return texts.text(random)
    kind, is_array = kind_of(value_type)
    return texts.drawn(random, kind, is_array)[0]


def a_table(random: Random, relation_id: int) -> TableSchema:
    names = random.sample(NAMES, random.randint(0, len(NAMES)))
    key = tuple(random.sample(names, random.randint(0, min(2, len(names)))))
    listed = [
        Column(name, at, 20, random.choice(["x", "timestamp(3)", "bit(1)"]), value_type=value_type)
        for at, name in enumerate(names, start=1)
        for value_type in [random.choice(TYPES)]
    ]
    return TableSchema(
        *(1, relation_id, random.choice(["public", 's"."']), random.choice(["t", "orders.\\:"])),
        *(ReplicaIdentity.DEFAULT, tuple(listed), key),
    )


def an_image(random: Random, table: TableSchema) -> Image | None:
    if random.random() < 0.2:
        return None
    is_partial = random.random() < 0.3
    row = {
        c.name: a_value(random, c.value_type)
        for c in table.columns
        if not is_partial or random.random() < 0.5
    }
    if random.random() < 0.02:
        row["of no column"] = a_value(random, "text")
    return row


def a_key(random: Random, table: TableSchema, share: float) -> tuple[str | None, ...] | None:
    if not table.key or random.random() > share:
        return None
    types = {c.name: c.value_type for c in table.columns}
    return tuple(a_value(random, types[name]) for name in table.key)


def a_change(random: Random, tables: Sequence[TableSchema], lsn: int, ordinal: int) -> Change:
    op = random.choice([Op.INSERT, Op.UPDATE, Op.DELETE] * 5 + list(Op))
    table = random.choice(tables)
    has_images = op in columns.ROW_OPS or random.random() < 0.1
    is_copied = op is Op.READ
    first = random.choice([COPY_ORDINAL, DIFFERENCE_ORDINAL])
    return Change(
        *(1, Lsn(lsn), first + ordinal if is_copied else ordinal, Lsn(lsn + 48), op.value),
        *(table.namespace, table.name, table.relation_id),
        None if op is Op.MESSAGE else table,
        key=None if op is Op.MESSAGE else a_key(random, table, 0.9 if has_images else 0.1),
        old_key=a_key(random, table, 0.1 if op is Op.UPDATE else 0.0),
        before=an_image(random, table) if has_images and op is not Op.INSERT else None,
        after=an_image(random, table) if has_images and op is not Op.DELETE else None,
        xid=None if is_copied else lsn % 1000,
        committed_at_us=None if is_copied else lsn % 1_000_000_007 * 1_000_003,
        payload='{"a": "b\n"}' if op in {Op.COPY, Op.DDL, Op.MESSAGE} else None,
    )


def a_history(seed: int) -> list[Change]:
    random = Random(seed)
    tables = [a_table(random, 16400 + number) for number in range(random.randint(1, 3))]
    changes = list[Change]()
    lsn = random.choice([1, 1 << 40, (1 << 63) - 1_000])
    for _ in range(random.randint(1, 8)):
        lsn += random.randint(1, 9)
        count = random.randint(1, 12)
        changes += [a_change(random, tables, lsn, ordinal) for ordinal in range(count)]
    return changes


@contextmanager
def together(least: int, at_once: int) -> Iterator[None]:
    """Even a few rows are rendered together."""
    with (
        mock.patch.object(columns, "LEAST_ROWS", least),
        mock.patch.object(columns, "AT_ONCE_ROWS", at_once),
    ):
        yield


def parted(changes: LoggedChanges, random: Random) -> list[LoggedChanges]:
    """The same changes in slices, whose columns begin in the middle of others."""
    assert changes.rows is not None
    at = random.randint(0, len(changes))
    parts = changes.rows.slice(0, at), changes.rows.slice(at)
    return [LoggedChanges(rows, changes.schemas) for rows in parts]


@pytest.mark.long
@given(SEEDS, st.sampled_from([1, 2, 5]), st.sampled_from([3, 17, 4096]))
@settings(max_examples=EXAMPLES * 4, deadline=None)
def test_messages_at_once_are_those_of_each_change(seed: int, least: int, at_once: int) -> None:
    history, envelope = a_history(seed), Envelope("shop")
    with together(least, at_once):
        for part in parted(logged(history), Random(seed)):
            assert part.rows is not None
            expected = [envelope(change) for change in LoggedChanges(part.rows, part.schemas)]
            assert list(envelope.of_changes(part)) == expected
    assert [envelope(change) for change in logged(history)] == [envelope(c) for c in history]


@given(SEEDS, st.sampled_from([1, 2, 5]), st.booleans())
@settings(max_examples=EXAMPLES * 2, deadline=None)
@pytest.mark.parametrize(
    "key",
    ["primary_key", *(pytest.param(key, marks=pytest.mark.long) for key in ("table", "schema"))],
)
@pytest.mark.parametrize("envelope", ["pgstream", "debezium"])
def test_records_at_once_are_those_of_each_change(
    envelope: str, key: str, seed: int, least: int, tombstones: bool
) -> None:
    fields = {"bootstrap_servers": "localhost", "topic": "{relation}", "envelope": envelope}
    is_ours = envelope == "pgstream"
    config = KafkaConfig.model_validate(fields | ({"key": key} if is_ours else {}))
    config = config.model_copy(update={"tombstones": tombstones})
    history = a_history(seed)
    of_changes = Records(config, "shop", hooks_of(config, "shop")).of_changes
    with together(least, 4096):
        at_once = [list(records) for records in of_changes(logged(history))]
    assert at_once == [list(records) for records in of_changes(history)]


@given(SEEDS)
@settings(max_examples=EXAMPLES, deadline=None)
@pytest.mark.parametrize("kind", [Kind.TEXT, Kind.INTEGER, Kind.NUMERIC, Kind.BOOLEAN, Kind.JSON])
def test_a_column_is_rendered_as_each_of_its_values(kind: Kind, seed: int) -> None:
    random = Random(seed)
    value_type = next(name for name in KINDS if KINDS[name] is kind)
    values = [a_value(random, value_type) for _ in range(random.randint(0, 20))]
    render = exact(value_type)
    column = rendered(render, pa.array(values, pa.string()))
    assert column.to_pylist() == ["null" if v is None else render(v) for v in values]
