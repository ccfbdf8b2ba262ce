"""Batches applied one after the other against the table that was played."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pgstream_dagster.schema.changes import Op
from pgstream_dagster.search import batch
from pgstream_dagster.search.batch import Deleted, FullRow, PartialRow
from pgstream_dagster.search.ids import document_id
from tests.support.reference.change import Change
from tests.support.reference.history import History, table

SEEDS = st.integers(0, 1 << 32)

Documents = dict[str, dict[int, str | None]]


def played(random: Random, is_keyed: bool, steps: int) -> History:
    """A table that begins empty and is never copied again."""
    history = History(random, is_keyed, key_space=8)
    layouts = [history.add, history.drop, history.rename]
    common = [history.insert, history.update, history.delete, history.insert]
    if is_keyed:
        common += [history.move, history.swap, history.insert_again]
    for _ in range(steps):
        lot = random.random()
        steps_now = [history.truncate] if lot < 0.03 else layouts if lot < 0.1 else common
        random.choice(steps_now)()
        if random.random() < 0.6:
            history.begin()
    return history


def stretches(random: Random, changes: list[Change]) -> list[list[Change]]:
    """Whole transactions, some of them together."""
    transactions: list[list[Change]] = [[]]
    for change in changes:
        last = transactions[-1][-1:]
        is_new = not last or last[0].position.commit_lsn != change.position.commit_lsn
        if is_new and random.random() < 0.5:
            transactions.append([])
        transactions[-1].append(change)
    return transactions


def apply(documents: Documents, folded: batch.Batch) -> None:
    """What an indexer does to an index, without one."""
    before = {} if folded.emptied_at is not None else dict(documents)
    if folded.emptied_at is not None:
        documents.clear()
    for document, outcome in folded.outcomes.items():
        match outcome.state:
            case FullRow(image):
                documents[document] = dict(image)
            case PartialRow(origin, image):
                documents[document] = {**before[origin], **image}
            case Deleted():
                documents.pop(document, None)


def shown(history: History, documents: Documents) -> dict[str, dict[str, str | None]]:
    """Documents under the newest names, with what Postgres shows for younger columns."""
    missing: dict[int, str | None] = {}
    for column in (column for version in history.versions for column in version.columns):
        missing.setdefault(column.attnum, column.missing)
    columns = history.newest.columns
    return {
        document: {c.name: image.get(c.attnum, missing[c.attnum]) for c in columns}
        for document, image in documents.items()
    }


@settings(deadline=None)
@given(SEEDS, st.integers(1, 80))
def test_stretches_give_the_rows_of_a_table_with_a_key(seed: int, steps: int) -> None:
    random = Random(seed)
    history = played(random, is_keyed=True, steps=steps)
    schemas = {version.schema_id: version for version in history.versions}
    documents: Documents = {}
    for stretch in stretches(random, history.changes):
        apply(documents, batch.fold(table(stretch), schemas, None))
    expected = {document_id((row[1],)): history.image(row) for row in history.rows}
    assert shown(history, documents) == expected


def test_half_a_row_without_its_row_is_left_out() -> None:
    history = History(Random(1))
    history.truncate()
    history.write(Op.UPDATE, {1: "5", 2: "x"}, after={"id": "5", "b": "x"})
    schemas = {version.schema_id: version for version in history.versions}
    folded = batch.fold(table(history.changes), schemas, None)
    assert folded.emptied_at == history.commit_lsn
    assert folded.outcomes == {}


def test_what_follows_a_gap_is_left_out() -> None:
    history = History(Random(1))
    history.insert()
    history.gap()
    history.begin()
    history.insert()
    schemas = {version.schema_id: version for version in history.versions}
    folded = batch.fold(table(history.changes), schemas, None)
    assert len(folded.outcomes) == 1
    assert folded.gap_at is not None
