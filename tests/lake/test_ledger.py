"""The ledger says which source a pipeline reads and what its tables were when they were copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog import ledger as ledger_module
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.ledger import CopyRecord, Ledger, PipelineIdentity
from pgstream_dagster.errors import LakeTaken
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.versions import Versions
from tests.support.plugins.clock import ClockSetBack

SHOP = PipelineIdentity("shop", "7312", "app", "pgstream_shop", "pgstream_shop", 1, 3)


def copy(point: int, **facts: object) -> CopyRecord:
    return CopyRecord(
        **{
            "consistent_point": Lsn(point),
            "members": {16_390: 16_400},
            "attnums": (1, 3),
            "newest_attnum": 4,
            "versions": Versions((20_000, 0)),
            "row_filter": None,
            "table": "public.örders",
            **facts,
        }
    )


def test_a_lake_without_a_ledger_has_no_identity(tmp_path: Path, gateway: JavaGateway):
    assert Ledger(Lake(str(tmp_path)), gateway).identity("shop") is None


def test_the_newest_identity_counts(lake: Lake, gateway: JavaGateway):
    ledger = Ledger(lake, gateway)
    assert ledger.identity("shop") is None
    ledger.record_identity(SHOP)
    later = PipelineIdentity("shop", "99", "app", "s", "p", 2, 1)
    ledger.record_identity(later)
    assert Ledger(lake, gateway).identity("shop") == ledger.identity("shop") == later
    ledger.close()


def test_the_ledger_is_read_once_for_any_number_of_tables(
    lake: Lake, gateway: JavaGateway, monkeypatch: pytest.MonkeyPatch
):
    ledger = Ledger(lake, gateway)
    for relation_id in (16_384, 16_385):
        ledger.record_copy(1, relation_id, copy(100))
    assert ledger.copies(1).keys() == {16_384, 16_385}
    with monkeypatch.context() as patched:
        patched.setattr(ledger_module.json, "loads", lambda _: pytest.fail("read again"))
        ledger.copies(1).clear()  # the caller's own
        assert ledger.copies(1).keys() == {16_384, 16_385}
    Ledger(lake, gateway).record_copy(1, 16_386, copy(100))
    assert ledger.copies(1).keys() == {16_384, 16_385, 16_386}
    ledger.close()


def test_no_clock_orders_facts(lake: Lake, gateway: JavaGateway, monkeypatch: pytest.MonkeyPatch):
    first, second = Ledger(lake, gateway), Ledger(lake, gateway)
    first.record_identity(replace(SHOP, timeline=1))
    second.record_identity(replace(SHOP, timeline=2))
    monkeypatch.setattr(ledger_module, "datetime", ClockSetBack)
    first.record_identity(SHOP)
    assert first.identity("shop") == second.identity("shop") == SHOP
    first.close()
    second.close()


def test_a_lake_of_another_pipeline_is_refused(lake: Lake, gateway: JavaGateway):
    ledger = Ledger(lake, gateway)
    ledger.record_identity(SHOP)
    with pytest.raises(LakeTaken, match="'shop', not of 'other'"):
        ledger.identity("other")
    ledger.close()


def test_the_newest_copy_of_each_relation_of_an_epoch(lake: Lake, gateway: JavaGateway):
    ledger = Ledger(lake, gateway)
    assert ledger.copies() == {}
    newest = copy(300, row_filter="(id > 3)")
    ledger.record_copy(1, 16_384, newest)
    ledger.record_copy(1, 16_384, copy(200))  # recorded late
    ledger.record_copy(1, 16_385, copy(100, members={}))
    assert ledger.copies() == {16_384: newest, 16_385: copy(100, members={})}
    ledger.record_copy(2, 16_384, copy(50))
    assert ledger.copies() == {16_384: copy(50)}
    assert ledger.copies(1)[16_384] == newest
    ledger.close()


def test_other_facts_are_kept_and_read_back_in_order(lake: Lake, gateway: JavaGateway):
    ledger = Ledger(lake, gateway)
    for number in range(20):
        ledger.record("note", 1, {"number": number})
    ledger.merge()
    ledger.record("note", 1, {"number": 20})
    assert [facts["number"] for _, facts in ledger.facts("note")] == list(range(21))
    assert len(ledger._table().files()) == 2
    ledger.close()


def test_other_files_of_a_table_count_until_its_next_copy(lake: Lake, gateway: JavaGateway):
    ledger = Ledger(lake, gateway)
    ledger.record_copy(1, 16_384, copy(100))
    ledger.record_files(1, 16_384, {16_390: 16_500}, Lsn(301))
    ledger.record_files(1, 16_384, {16_390: 16_450}, Lsn(201))  # recorded late
    ledger.record_files(1, 16_385, {16_391: 1}, Lsn(201))  # of a table without a copy
    assert ledger.copies(1) == {16_384: copy(100, members={16_390: 16_500})}
    ledger.record_copy(1, 16_384, copy(301, members={16_390: 16_600}))
    assert ledger.copies(1) == {16_384: copy(301, members={16_390: 16_600})}
    ledger.close()
