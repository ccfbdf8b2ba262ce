"""The log of schemas: every version once, in the order in which they came into force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog import schema_log
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from tests.support.plugins.clock import ClockSetBack


def schema(*names: str, relation_id: int = 16_384, epoch: int = 1) -> TableSchema:
    columns = tuple(
        Column(name, attnum, 25, "text", missing="1" if attnum > 1 else None)
        for attnum, name in enumerate(names, start=1)
    )
    return TableSchema(
        epoch, relation_id, "public", "orders", ReplicaIdentity.DEFAULT, columns, ("id",)
    )


A, B = schema("id"), schema("id", "noté")


def test_versions_come_back_as_they_were_newest_last(lake: Lake, gateway: JavaGateway):
    log = SchemaLog(lake, gateway)
    assert log.all() == []
    assert log.append([(B, Lsn(200)), (A, Lsn(100))]) == 2
    again = SchemaLog(lake, gateway)
    assert again.all() == [A, B]
    assert again.by_id() == {A.schema_id: A, B.schema_id: B}
    log.close()


def test_a_version_in_force_is_not_added_again(lake: Lake, gateway: JavaGateway):
    log = SchemaLog(lake, gateway)
    log.append([(A, Lsn(100)), (B, Lsn(200))])
    assert log.append([(A, Lsn(100)), (A, Lsn(150)), (B, Lsn(300))]) == 0
    assert SchemaLog(lake, gateway).append([(A, Lsn(150)), (B, Lsn(250))]) == 0
    assert log.append([]) == 0
    log.close()


def test_a_version_that_comes_back_is_the_newest_again(lake: Lake, gateway: JavaGateway):
    """A column added and dropped: the columns are those of the first version, and so is its id."""
    log = SchemaLog(lake, gateway)
    log.append([(A, Lsn(100)), (B, Lsn(200))])
    assert log.append([(A, Lsn(300))]) == 1
    assert log.all() == [B, A]
    log.close()


def test_of_versions_at_one_position_the_last_holds(lake: Lake, gateway: JavaGateway):
    """A transaction that alters a table and alters it back."""
    log = SchemaLog(lake, gateway)
    assert log.append([(A, Lsn(100)), (B, Lsn(100)), (A, Lsn(100))]) == 3
    assert log.all() == [B, A]
    log.append([(B, Lsn(100))])
    log.append([(A, Lsn(100))])
    assert log.all() == SchemaLog(lake, gateway).all() == [B, A]
    assert log.in_force(1, Lsn(101)) == {A.relation_id: (Lsn(100), A)}
    log.close()


def test_no_clock_orders_versions(
    lake: Lake, gateway: JavaGateway, monkeypatch: pytest.MonkeyPatch
):
    log = SchemaLog(lake, gateway)
    log.append([(A, Lsn(100)), (B, Lsn(200))])
    monkeypatch.setattr(schema_log, "datetime", ClockSetBack)
    log.append([(A, Lsn(200))])
    log.merge()
    assert SchemaLog(lake, gateway).all() == [B, A]
    log.close()


def test_renamed_relation_has_its_newest_name(lake: Lake, gateway: JavaGateway):
    log, renamed = SchemaLog(lake, gateway), replace(A, name="renamed")
    assert log.append([(A, Lsn(100)), (renamed, Lsn(200)), (renamed, Lsn(300))]) == 2
    assert log.all() == [renamed]
    assert log.named_versions((A.epoch, A.relation_id)) == [A, renamed]
    log.close()


def test_relations_and_epochs_do_not_meet(lake: Lake, gateway: JavaGateway):
    log = SchemaLog(lake, gateway)
    others = [schema("id", relation_id=5), schema("id", epoch=2)]
    assert log.append([(A, Lsn(100)), (others[0], Lsn(100)), (others[1], Lsn(50))]) == 3
    assert log.all() == [A, *others]
    log.close()


def test_merging_files_keeps_the_versions(lake: Lake, gateway: JavaGateway):
    log = SchemaLog(lake, gateway)
    versions = [schema("id", f"c{n}") for n in range(20)]
    for version in versions:
        log.append([(version, Lsn(1))])
    log.merge()
    assert log.all() == versions
    log.append([(A, Lsn(1))])
    assert SchemaLog(lake, gateway).all() == [*versions, A]
    assert len(log._table().files()) == 2
    log.close()
