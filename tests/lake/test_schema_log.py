"""The log of schemas: every version once, in the order in which they came into force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from py4j.java_gateway import JavaGateway

from pgstream_dagster.changelog import schema_log
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.changelog.table_specs import SCHEMA_LOG
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.ddl import DdlEntry, DdlTable
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


def command(version: TableSchema, lsn: int, ordinal: int = 0, *, is_drop: bool = False) -> DdlEntry:
    """What a command reported; of a DROP there is no description."""
    tag = "DROP TABLE" if is_drop else "ALTER TABLE"
    description = (
        None if is_drop else DdlTable(version.relation_id, "public", "orders", comment="é")
    )
    return DdlEntry(version, Lsn(lsn), ordinal, 1_700, tag, f"{tag} ...", is_drop, description)


def entries(lake: Lake, gateway: JavaGateway) -> list[tuple[int, TableSchema, int | None]]:
    """What is shown: position, version, and the ordinal of its command."""
    shown = SchemaLog(lake, gateway).entries(A.epoch, A.relation_id)
    return [(e.since, e.schema, None if e.ddl is None else e.ddl.ordinal) for e in shown]


def test_ddl_comes_back_as_it_was(lake: Lake, gateway: JavaGateway):
    log = SchemaLog(lake, gateway)
    commands = [command(A, 100, 0), command(B, 100, 7), command(B, 200, is_drop=True)]
    assert log.append(commands) == 3
    shown = SchemaLog(lake, gateway).entries(A.epoch, A.relation_id)
    assert [entry.ddl for entry in shown] == commands
    assert [(e.is_exact, e.is_drop) for e in shown] == [(True, False)] * 2 + [(True, True)]
    assert log.append(commands) == SchemaLog(lake, gateway).append(commands) == 0
    log.close()


def test_versions_are_read_from_ddl_as_from_rows(lake: Lake, gateway: JavaGateway):
    log = SchemaLog(lake, gateway)
    log.append([(A, Lsn(100))])
    log.append([command(A, 150), command(B, 200), command(B, 300, is_drop=True)])
    assert log.append([(B, Lsn(250))]) == 0
    for reader in (log, SchemaLog(lake, gateway)):
        assert reader.history(1) == [(Lsn(100), A), (Lsn(200), B)]
        assert reader.all() == list(reader.by_id().values()) == [A, B]
        assert reader.named_versions() == [A, B]
        assert reader.in_force(1, Lsn(400)) == {A.relation_id: (Lsn(200), B)}
    log.close()


def test_a_command_that_leaves_the_version_as_it_was_is_an_entry_only(
    lake: Lake, gateway: JavaGateway
):
    """A default is no part of a version: readers keep the one that their rows name."""
    log = SchemaLog(lake, gateway)
    log.append([(A, Lsn(100))])
    defaulted = replace(A, columns=(replace(A.columns[0], default="1"),))
    assert log.append([command(defaulted, 200)]) == 1
    assert log.history(1) == [(Lsn(100), A)]
    assert entries(lake, gateway) == [(100, A, None), (200, defaulted, 0)]
    log.close()


@pytest.mark.parametrize("is_together", [False, True])
def test_a_transaction_that_is_sent_again_leaves_its_last_version(
    lake: Lake, gateway: JavaGateway, is_together: bool
):
    """P114: rows, ALTER, rows, ALTER back, rows; landed up to any place, then once more."""
    log, changed = SchemaLog(lake, gateway), (command(B, 100, 1), command(A, 100, 3))
    rows = [(A, Lsn(100)), (B, Lsn(100)), (A, Lsn(100))]
    whole = [rows[0], changed[0], rows[1], changed[1], rows[2]]
    for _ in range(3):
        if is_together:
            log.append(whole)
        else:
            log.append(rows)
            log.append(changed)
        assert log.in_force(1, Lsn(101)) == {A.relation_id: (Lsn(100), A)}
    exact = [(100, B, 1), (100, A, 3)]
    assert [entry for entry in entries(lake, gateway) if entry[2] is not None] == exact
    log.close()


def test_ddl_that_was_recorded_holds_again_after_the_version_before_it_is_sent_again(
    lake: Lake, gateway: JavaGateway
):
    """The first rows of a transaction show the version before its DDL, which has no row after."""
    log = SchemaLog(lake, gateway)
    for _ in range(2):
        log.append([(A, Lsn(100))])
        log.append([command(B, 100, 5)])
        assert log.in_force(1, Lsn(101)) == {A.relation_id: (Lsn(100), B)}
    assert entries(lake, gateway) == [(100, A, None), (100, B, 5)]
    log.close()


def test_a_version_that_rows_show_after_its_ddl_is_shown_once(lake: Lake, gateway: JavaGateway):
    log = SchemaLog(lake, gateway)
    log.append([(A, Lsn(100)), (A, Lsn(200)), (B, Lsn(200))])
    log.append([command(B, 200, 1)])
    assert entries(lake, gateway) == [(100, A, None), (200, B, 1)]
    log.close()


def test_rows_from_before_ddl_are_read_and_ddl_is_no_part_of_a_schema(
    lake: Lake, gateway: JavaGateway
):
    """A lake of a version without DDL: its rows have none of the members that came with it."""
    log = SchemaLog(lake, gateway)
    log.append([(A, Lsn(100)), (B, Lsn(200))])
    texts = log.rows()["schema"].to_pylist()
    assert texts == [A.to_json(), B.to_json()]
    assert [TableSchema.from_json(text) for text in texts] == [A, B]
    assert entries(lake, gateway) == [(100, A, None), (200, B, None)]
    assert TableSchema.from_json(command(B, 300).to_json()) == B
    log.append([command(B, 300)])
    assert log.rows().schema == SCHEMA_LOG.columns
    log.close()
