"""A log entry is whole or it is not: every cut of one of ours is noticed."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.delta.entries import (
    engine_info,
    parse,
    version_of_checkpoint,
    version_of_entry,
)


def entry(*actions: dict[str, object]) -> bytes:
    info = {"commitInfo": {"engineInfo": f"Kernel-4.4.0/{engine_info(len(actions))}"}}
    return "".join(json.dumps(line) + "\n" for line in (info, *actions)).encode()


def add(path: str, *, data_change: bool = True) -> dict[str, object]:
    return {
        "add": {"path": path, "size": 10, "dataChange": data_change, "stats": '{"numRecords":1}'}
    }


LANDING = entry(
    {"txn": {"appId": "shop/1", "version": 300}}, add("a.parquet"), add("b%20c.parquet")
)


def test_a_landing_says_its_id_and_its_files_in_order():
    parsed = parse(4, LANDING)
    assert parsed is not None
    assert parsed.version == 4
    assert parsed.transactions == {"shop/1": 300}
    assert [file.name for file in parsed.added] == ["a.parquet", "b c.parquet"]


@given(st.integers(0, len(LANDING) - 1))
def test_every_cut_of_an_entry_is_torn(size: int):
    assert parse(4, LANDING[:size]) is None


@given(st.integers(0, len(LANDING) - 1))
def test_a_tail_of_zeros_is_torn(size: int):
    assert parse(4, LANDING[:size] + bytes(len(LANDING) - size)) is None


def test_an_entry_of_another_writer_is_whole_when_its_lines_are():
    parsed = parse(
        1,
        b'{"commitInfo":{"engineInfo":"Apache-Spark/4.2.0"}}\n{"txn":{"appId":"x","version":1}}\n',
    )
    assert parsed is not None
    assert parsed.transactions == {"x": 1}


def test_a_rewrite_brings_nothing_and_names_what_it_removed():
    parsed = parse(
        9,
        entry(
            {"remove": {"path": "a.parquet", "dataChange": False}},
            add("big.parquet", data_change=False),
        ),
    )
    assert parsed is not None
    assert parsed.added == ()
    assert parsed.removed == {"a.parquet"}


def test_lines_that_are_no_objects_are_torn():
    assert parse(1, b"17\n") is None
    assert parse(1, b"") is None
    assert parse(1, b"\n") is None


def test_names_say_their_versions():
    assert version_of_entry("00000000000000000017.json") == 17
    assert version_of_entry("00000000000000000017.crc") is None
    assert version_of_entry(".00000000000000000017.json.tmp") is None
    assert version_of_checkpoint("00000000000000000100.checkpoint.parquet") == 100
    assert (
        version_of_checkpoint("00000000000000000100.checkpoint.0000000001.0000000002.parquet")
        == 100
    )
    assert version_of_checkpoint("00000000000000000100.json") is None
