"""
Reports of DDL among the messages of transactions, in the order in which the log has them. Pure.

A report comes after the command, so before every row that needs it, but for `create table as` and
`select into`, which fill the table first: their report is moved to before the table's first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from pgstream_dagster.capture.spool import HEADER
from pgstream_dagster.capture.transactions import LargeTransaction, reported
from pgstream_dagster.schema.ddl import PREFIX, DdlReport
from pgstream_dagster.wire import pgoutput
from pgstream_dagster.wire.messages import MessageBatch, join, relations

_BEGIN: Final = ord("B")


def reports(batch: MessageBatch) -> dict[int, DdlReport | None]:
    """The messages of a batch that are for us, by index; `None` for one that is no report."""
    return {
        at: reported(message)
        for at, message in batch.controls.items()
        if isinstance(message, pgoutput.LogicalMessage) and message.prefix == PREFIX
    }


def in_order(batch: MessageBatch) -> MessageBatch:
    """A batch of whole transactions with each report before the first row that needs it."""
    moves = dict(_moves(batch, reports(batch)))
    if not moves:
        return batch
    # A report takes the place right before that of its target.
    places = np.arange(len(batch.starts), dtype=np.float64)
    for at, target in moves.items():
        places[at] = target - 0.5
    order = np.argsort(places, kind="stable")
    return replace(batch, starts=batch.starts[order], ends=batch.ends[order])


def parts_in_order(transaction: LargeTransaction) -> Iterator[MessageBatch]:
    """The batches of a large transaction, with each report before the first row that needs it."""
    waiting = {report.relation_id: report.message for report in transaction.late_reports}
    moved: set[int] = set()
    batches = transaction.batches()
    while (batch := next(batches, None)) is not None:
        if waiting or moved:
            yield from _parts(_without(batch, moved), waiting, moved, transaction.streamed)
        else:
            given, batch = [batch], None
            yield given.pop()  # only its receiver holds it


def _parts(
    batch: MessageBatch, waiting: dict[int, bytes], moved: set[int], streamed: bool
) -> Iterator[MessageBatch]:
    begin = 0
    in_place = [(at, oid) for at, report in reports(batch).items() if (oid := _filled(report))]
    described = [(at, relation.relation_id) for at, relation in relations(batch)]
    for at, oid in sorted([*in_place, *described]):
        message = waiting.pop(oid, None)  # no row came before a report in its place
        if message is not None and (at, oid) not in in_place:
            moved.add(oid)
            yield batch.part(begin, at)
            yield join([message], header=HEADER, streamed=streamed)
            begin = at
    yield _without(batch.part(begin, len(batch.starts)), moved)


def _without(batch: MessageBatch, moved: set[int]) -> MessageBatch:
    """The batch without the reports that were moved."""
    is_moved = np.zeros(len(batch.starts), dtype=np.bool_)
    for at, report in reports(batch).items():
        is_moved[at] = _filled(report) in moved
    return batch.without(is_moved) if is_moved.any() else batch


def _moves(
    batch: MessageBatch, by_index: Mapping[int, DdlReport | None]
) -> Iterator[tuple[int, int]]:
    """Reports, and the first description of their table in the same transaction."""
    for at, report in by_index.items():
        oid = _filled(report)
        if oid is None:
            continue
        begin = np.flatnonzero(batch.kinds[:at] == _BEGIN)[-1]
        before = [i for i, r in relations(batch) if begin < i < at and r.relation_id == oid]
        if before:
            yield at, before[0]


def _filled(report: DdlReport | None) -> int | None:
    return None if report is None else report.filled
