"""Which relations a history is of, its periods, and its columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pgstream_dagster.config.tables import TablesConfig
from pgstream_dagster.errors import HistoryNameTaken, HistoryNeedsKey, NoSuchMoment
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.change import Place
from pgstream_dagster.schema.changes import COPY_ORDINAL, GAP_ORDINAL, Op
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from pgstream_dagster.tables.assignment import Copied
from pgstream_dagster.tables.history.as_of import moment
from pgstream_dagster.tables.history.chosen import Chosen, chosen
from pgstream_dagster.tables.history.columns import history_layout
from pgstream_dagster.tables.history.lineage import Relation, lineage
from pgstream_dagster.tables.history.periods import Marker, gap_at, periods


def text(name: str, attnum: int, missing: str | None = None) -> Column:
    return Column(name, attnum, 25, "text", missing=missing, value_type="text")


def version(epoch: int, oid: int, name: str, *columns: Column, key: str = "id") -> TableSchema:
    identity = ReplicaIdentity.DEFAULT
    keys = (key,) if key else ()
    return TableSchema(epoch, oid, "public", name, identity, columns or (text("id", 1),), keys)


def relation(epoch: int, oid: int, at: int, *names: str) -> Relation:
    """With the names that it had since its first copy."""
    versions = [version(epoch, oid, name) for name in names]
    return Relation(epoch, oid, Lsn(at), versions[0].full_name, versions)


def test_a_table_goes_on_in_the_next_epoch_and_when_it_is_created_again() -> None:
    first, second = relation(1, 7, 10, "t"), relation(2, 90, 5, "t")
    third = relation(2, 95, 50, "t", "renamed later")
    others = [first, second, third, relation(1, 8, 20, "u"), relation(2, 91, 60, "t")]
    assert lineage(third, others) == [first, second, third]


def test_a_renamed_table_brings_its_own_history() -> None:
    dropped, new = relation(1, 7, 10, "t"), relation(1, 8, 20, "t_new", "t")
    assert lineage(new, [dropped, new]) == [new]


def marker(op: Op, lsn: int, ordinal: int = 0) -> Marker:
    return Marker(Place(Lsn(lsn), ordinal), op)


def test_rows_end_with_the_next_copy_or_truncate_and_a_gap_is_known() -> None:
    copy, truncate = marker(Op.COPY, 10, COPY_ORDINAL), marker(Op.TRUNCATE, 20, 3)
    gap, again = marker(Op.GAP, 30, GAP_ORDINAL), marker(Op.COPY, 50, COPY_ORDINAL)
    unseen = [marker(Op.TRUNCATE, 5), marker(Op.TRUNCATE, 40), marker(Op.GAP, 45, GAP_ORDINAL)]
    parts = periods([again, truncate, *unseen, copy, gap])
    assert [(part.start, part.is_open, part.end) for part in parts] == [
        (copy, True, truncate),
        (truncate, True, again),
        (gap, False, again),
        (again, True, None),
    ]
    assert gap_at(parts, Lsn(29)) is None
    assert gap_at(parts, Lsn(31)) == (Lsn(30), Lsn(50))
    assert gap_at(parts, Lsn(50)) is None
    assert gap_at(parts[:3], Lsn(60)) == (Lsn(30), Lsn(50))


def test_dropped_columns_stay_under_names_that_no_present_one_has() -> None:
    identity, a, again = text("id", 1), text("a", 2), text("a", 4, missing="0")
    versions = [
        version(1, 7, "t", identity, a, text("_key", 3)),
        version(1, 7, "t", identity, again),
    ]
    made = history_layout([versions], {})
    assert {n: column.name for n, column in made.columns.items()} == {
        1: "id",
        4: "a",
        2: "a_2",
        3: "key_3",
    }
    old, new = made.images
    assert old.absent == {"a": "0"}
    assert set(new.absent.values()) == {None}
    assert made.lacking == {n: frozenset({versions[1].schema_id}) for n in (2, 3)}


def test_columns_of_an_earlier_epoch_are_known_by_their_names() -> None:
    before = version(1, 7, "t", text("id", 1), text("gone", 2), text("a", 3))
    now = version(2, 99, "t", text("a", 1), text("id", 2), text("b", 3, missing="x"))
    made = history_layout([[before], [now]], {})
    assert {n: column.name for n, column in made.columns.items()} == {
        1: "a",
        2: "id",
        3: "b",
        10_002: "gone",
    }
    assert made.images[0].names == {
        "id": "id",
        "a": "a",
        "gone": made.columns[10_002].source.name,
    }
    assert made.images[0].absent == {"b": "x"}


def test_a_wildcard_passes_over_tables_without_a_key() -> None:
    keyed = Copied(Lsn(1), [version(1, 7, "t")])
    bag = Copied(Lsn(1), [version(1, 8, "bag", key="")])
    config = TablesConfig(history=("*.*",))
    assert chosen({7: keyed, 8: bag}, {}, {}, config) == Chosen({"public.t__history": 7}, set(), [])
    assert chosen({7: keyed, 8: bag}, {}, {}, TablesConfig()) == Chosen()


def test_a_table_that_can_have_no_history_keeps_no_other_from_having_one() -> None:
    keys = {"t": "id", "bag": "", "u": "id", "t__history": "id"}
    relations = {
        oid: Copied(Lsn(1), [version(1, oid, name, key=keys[name])])
        for oid, name in enumerate(keys, 7)
    }
    config = TablesConfig(history=("t", "bag", "u"))
    histories = chosen(relations, {}, {}, config)
    assert histories.names == {"public.u__history": 9}
    assert [type(error) for error in histories.errors] == [HistoryNeedsKey, HistoryNameTaken]
    assert ["bag" in str(error) for error in histories.errors] == [True, False]


def test_a_history_waits_for_the_next_key_of_its_table_through_renames() -> None:
    versions = [version(1, 7, "t"), version(1, 7, "t2", key="")]
    keyless = Copied(Lsn(1), versions[1:], versions)
    other = Copied(Lsn(1), [version(1, 8, "t")])
    config, before = TablesConfig(history=("t",)), {"public.t__history": 7}
    histories = chosen({7: keyless}, {"public.t": 7}, before, config)
    assert (histories.names, histories.waiting) == ({}, {"public.t__history"})
    assert ["'public.t2'" in str(error) for error in histories.errors] == [True]
    # Until another table takes the name.
    taken = chosen({7: keyless, 8: other}, {"public.t": 7}, before, config)
    assert taken == Chosen({"public.t__history": 8}, set(), [])


def test_a_table_that_is_renamed_out_of_include_keeps_its_history() -> None:
    names = [version(1, 7, "t"), version(2, 7, "sales")]
    renamed = Copied(Lsn(1), names[1:], names)
    config = TablesConfig(include=("public.t",), history=("public.t",))
    before = {"public.t__history": 7}
    assert chosen({7: renamed}, {"public.t": 7}, before, config) == Chosen(before, set(), [])


def test_a_moment_is_a_position_or_a_time_with_a_zone() -> None:
    assert moment("16/B374D848") == Lsn.parse("16/B374D848")
    assert moment("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    for written in ("2026-01-31T12:00:00", "yesterday", "1/x/2", ""):
        with pytest.raises(NoSuchMoment):
            moment(written)


def test_digest_is_another_for_other_columns() -> None:
    before = version(1, 7, "t", text("id", 1), text("a", 2))
    other = replace(before, columns=(text("id", 1), text("b", 2)))
    assert history_layout([[before]], {}).digest != history_layout([[other]], {}).digest


def test_a_version_that_comes_again_is_read_as_at_first() -> None:
    """A column was added and dropped: rows from before it show its default, then and later."""
    plain, added = version(1, 7, "t"), version(1, 7, "t", text("id", 1), text("a", 2, "default"))
    layout = history_layout([[plain, added, plain]], {})
    absent = {image.schema_id: image.absent for image in layout.images}
    assert absent[plain.schema_id] == {"former 2": "default"}
    assert layout.lacking == {2: frozenset({plain.schema_id})}  # not compared
