"""The net effect of changes, applied as the sink does, is what the changes do one by one."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.readers.change import Change, Key
from pgstream_dagster.sinks.postgres.fold import Net, NoKey, fold
from tests.support.harness.sink_changes import History, version

KEYED = version("t", {"id": "integer", "a": "text", "b": "text"})
KEYLESS = version("t", {"a": "text"}, key=())

Table = dict[Key, dict[str, "str | None"]]


@st.composite
def keyed(draw: st.DrawFn) -> tuple[Table, list[Change]]:
    """Rows that a table has, and changes of it that Postgres would accept."""
    before: Table = {(k,): {"id": k, "a": "0", "b": "0"} for k in draw(st.sets(keys))}
    now, changes, h = dict(before), list[Change](), History()
    for number in range(draw(st.integers(0, 15))):
        key, other, text = (draw(keys),), (draw(keys),), str(number)
        if key not in now:
            after = {"id": key[0], "a": text, "b": None}
            changes.append(h.insert(KEYED, **after))
            now[key] = after
        elif draw(st.booleans()):
            target = other if other not in now else key
            changes.append(h.update(KEYED, None if target == key else key, id=target[0], a=text))
            now[target] = now.pop(key) | {"id": target[0], "a": text}
        else:
            changes.append(h.delete(KEYED, id=key[0]))
            del now[key]
    return before, changes


keys = st.sampled_from("abcd")


def one_by_one(table: Table, changes: list[Change]) -> Table:
    rows = dict(table)
    for change in changes:
        assert change.key is not None
        old = rows.pop(change.old_key or change.key, {})
        if change.op != "delete":
            rows[change.key] = old | dict(change.after or {})
    return rows


def applied(table: Table, nets: list[Net]) -> Table:
    rows = dict(table)
    for net in nets:
        for key in net.deleted:
            del rows[key]
        moved = [(key, rows.pop(row.origin) | row.values) for key, row in net.updated]
        for key, values in [*moved, *(((row["id"],), row) for row in net.inserted)]:
            assert key not in rows
            rows[key] = values
    return rows


@given(keyed())
def test_a_fold_comes_to_what_its_changes_come_to(case: tuple[Table, list[Change]]) -> None:
    table, changes = case
    nets = fold(changes) if changes else []
    assert len(nets) <= 1
    assert applied(table, nets) == one_by_one(table, changes)


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_rows_without_a_key_are_counted(inserted: list[str], deleted: list[str]) -> None:
    h = History()
    changes = [h.insert(KEYLESS, a=a) for a in inserted]
    changes += [h.delete(KEYLESS, a=a) for a in deleted]
    changes.append(h.update(KEYLESS, before={"a": "x"}, a="y"))
    [net] = fold(changes)
    counts = Counter(inserted)
    counts.subtract(deleted)
    counts.update({"x": -1, "y": 1})
    assert Counter(row["a"] for row in net.inserted) == +counts
    assert Counter(row["a"] for row in net.removed) == -counts


def test_an_insert_of_a_key_that_is_there_is_left_to_the_target() -> None:
    h = History()
    rows = [h.update(KEYED, id="a", a="1"), h.insert(KEYED, id="a", a="2", b=None)]
    first, second = fold(rows)
    assert [key for key, _ in first.updated] == [("a",)]
    assert [row["a"] for row in second.inserted] == ["2"]


def test_a_change_that_names_no_row_is_left_out_as_the_fold_of_the_log_does() -> None:
    h = History()
    [net] = fold([h.delete(KEYLESS), h.update(KEYLESS, a="1"), h.insert(KEYLESS, a="2")])
    assert (net.left_out, net.removed, net.inserted) == (2, [], [{"a": "2"}])


def test_a_change_without_the_key_of_its_table_is_refused() -> None:
    change = msgspec.structs.replace(History().update(KEYED, id="a", a="1"), key=None)
    with pytest.raises(NoKey):
        fold([change])


def test_a_row_without_columns_is_any_row() -> None:
    h, empty = History(), version("t", {}, key=())
    [net] = fold([h.insert(empty), h.delete(empty), h.delete(empty), h.update(empty, before={})])
    assert (net.removed, net.inserted) == ([{}], [])
