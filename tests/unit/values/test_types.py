"""The table of types is whole: every entry says something of each use."""

from __future__ import annotations

from pgstream_dagster.schema.table import Column
from pgstream_dagster.search.types import TYPES as IN_SEARCH
from pgstream_dagster.tables.forms import form_of
from pgstream_dagster.tables.types import data_type
from pgstream_dagster.values.kinds import KINDS, Kind
from pgstream_dagster.values.types import TYPES, LakeType


def test_search_and_json_derive_from_the_table() -> None:
    assert [*TYPES] == [*KINDS] == [*IN_SEARCH]
    assert {name: form.kind for name, form in IN_SEARCH.items()} == dict(KINDS)
    assert {*KINDS.values()} == {*Kind}


def test_ranges_have_bounds_of_a_type_and_others_have_none() -> None:
    ranges = {LakeType.RANGE, LakeType.MULTIRANGE}
    assert {n for n, t in TYPES.items() if t.bound} == {
        n for n, t in TYPES.items() if t.lake in ranges
    }
    assert not {t.bound for t in TYPES.values()} - {"", *TYPES}


def test_every_type_has_a_data_type_alone_and_as_an_array() -> None:
    for name in TYPES:
        for value_type in (name, f"{name}[]"):
            column = Column("c", 1, 1, name, value_type=value_type)
            assert data_type(form_of(column)).simpleString()
