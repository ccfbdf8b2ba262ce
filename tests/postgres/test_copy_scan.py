"""What a scan may read, and how it says that it may not; its tasks run here, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgstream_dagster.copy import copy_plan, scan
from pgstream_dagster.copy.scan import ScanPlan
from pgstream_dagster.errors import AccessRefused, LocksHeld, SnapshotLost, TableRewritten
from pgstream_dagster.schema.changes import first_read_ordinal
from pgstream_dagster.source import snapshot as snapshot_module
from pgstream_dagster.source.catalog import describe
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.publication import ensure, published
from pgstream_dagster.source.snapshot import Guard, Snapshot, exported
from tests.support.harness.background import in_thread
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until


def plan(dsn: str, name: str, snapshot: Snapshot, *, ranges: int = 4) -> ScanPlan:
    with closing(connect(dsn)) as catalog:
        table = next(t for t in published(catalog, "pub") if t.name == name)
        schema = describe(catalog, 1, table.relation_id, table.columns)
        return scan.plan(catalog, table, schema, snapshot, ranges=ranges)


def read(dsn: str, planned: ScanPlan) -> list[tuple[int, dict[str, str | None]]]:
    scan._require_readable(dsn, planned)
    work = scan._Work(dsn, "", planned)
    parts = [part for task in planned.tasks for part in scan._changes(work, task)]
    rows = [row for part in parts for row in part.select(["ordinal", "after"]).to_pylist()]
    return [(row["ordinal"], dict(row["after"])) for row in rows]


@pytest.fixture
def loaded(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(copy_plan, "TASK_PAGES", 1)
    monkeypatch.setattr(scan, "BATCH_ROWS", 100)
    psql(
        dsn,
        "create table plain (id int primary key, v text)",
        "insert into plain select i, repeat('x', i % 90) from generate_series(1, 3000) i",
        "create table tree (id int primary key) partition by range (id)",
        "create table leaf_1 partition of tree for values from (0) to (100)",
        "create table leaf_2 partition of tree for values from (100) to (1000)",
        "insert into tree select generate_series(0, 999)",
    )
    with closing(connect(dsn)) as session:
        ensure(session, "pub", "all")
    return dsn


@pytest.fixture
def role(loaded: str) -> Iterator[Callable[..., str]]:
    """A login role with the rights given; its connection string."""
    name = f"{conninfo_to_dict(loaded)['dbname']}_reader"

    def make(*grants: str) -> str:
        psql(loaded, f"create role {name} login", *(grant.format(name) for grant in grants))
        return make_conninfo(loaded, user=name)

    yield make
    psql(loaded, f"drop owned by {name}", f"drop role {name}")


def test_ranges_hold_every_row_once_with_ordinals_of_their_own(loaded: str) -> None:
    with exported(loaded) as snapshot:
        planned = plan(loaded, "plain", snapshot)
        rows = read(loaded, planned)
    assert len(planned.tasks) == 4
    assert sorted(int(row["id"] or "") for _, row in rows) == list(range(1, 3001))
    starts = [first_read_ordinal(number) for number in range(4)]
    assert {start for start in starts if start in {ordinal for ordinal, _ in rows}} == {*starts}
    assert len({ordinal for ordinal, _ in rows}) == 3000


def test_rows_moved_while_ranges_are_read_are_in_the_copy_once(loaded: str) -> None:
    with exported(loaded) as snapshot:
        planned = plan(loaded, "plain", snapshot)
        psql(
            loaded,
            "update plain set v = repeat('moved', 10)",
            "delete from plain where id > 2000",
            "insert into plain select i, 'late' from generate_series(5000, 9000) i",
            "vacuum plain",
        )
        rows = read(loaded, planned)
    assert sorted(int(row["id"] or "") for _, row in rows) == list(range(1, 3001))
    assert not any("moved" in (row["v"] or "") for _, row in rows)


def test_a_tree_is_read_by_its_root_where_only_that_is_granted(
    loaded: str, role: Callable[..., str]
) -> None:
    reader = role("grant select on tree to {}")
    with exported(loaded) as snapshot, Guard(reader, snapshot) as guard:
        with closing(connect(reader)) as catalog:
            table = next(t for t in published(catalog, "pub") if t.name == "tree")
            assert guard.hold(table, catalog) == table.members
        planned = plan(reader, "tree", snapshot)
        assert [pages.leaf.with_partitions for t in planned.tasks for pages in t.ranges] == [True]
        rows = read(reader, planned)
    assert sorted(int(row["id"] or "") for _, row in rows) == list(range(1000))


def test_a_copy_does_not_wait_in_a_circle_with_a_statement_of_the_application(
    loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard has the lock that the statement waits for, and the scan waits behind that."""
    monkeypatch.setattr(snapshot_module, "LOCK_SECONDS", 0.5)
    with exported(loaded) as snapshot, Guard(loaded, snapshot) as guard:
        with closing(connect(loaded)) as catalog:
            table = next(t for t in published(catalog, "pub") if t.name == "plain")
            guard.hold(table, catalog)
        planned = plan(loaded, "plain", snapshot)
        with in_thread(lambda _: psql(loaded, "alter table plain add waits int"), "alter"):
            until(lambda: psql(loaded, WAITING))
            with pytest.raises(LocksHeld):
                read(loaded, planned)
            guard.__exit__(None, None, None)
            until(lambda: not psql(loaded, WAITING))


WAITING = "select 1 from pg_stat_activity where query like 'alter%' and wait_event_type = 'Lock'"


@pytest.mark.parametrize(
    "impostor",
    [
        pytest.param([], id="and the name leads nowhere"),
        pytest.param(
            ["create schema public", "create table plain (id int primary key, v text)"],
            id="and another table has its name",
        ),
        pytest.param(
            ["create schema public", "create table plain (id int primary key)"],
            id="and a table of other columns has its name",
        ),
    ],
)
def test_a_table_whose_schema_is_renamed_under_the_guard_is_not_read_by_its_name(
    loaded: str, impostor: list[str]
) -> None:
    with exported(loaded) as snapshot, Guard(loaded, snapshot) as guard:
        with closing(connect(loaded)) as catalog:
            table = next(t for t in published(catalog, "pub") if t.name == "plain")
            guard.hold(table, catalog)
        planned = plan(loaded, "plain", snapshot)
        psql(loaded, "alter schema public rename to away", *impostor)
        with pytest.raises(TableRewritten):
            read(loaded, planned)


def test_a_missing_right_is_named_before_anything_is_read(
    loaded: str, role: Callable[..., str]
) -> None:
    reader = role("grant select on tree to {}")
    with exported(loaded) as snapshot:
        planned = plan(reader, "plain", snapshot)
        with pytest.raises(AccessRefused, match=r'run grant select on "public"\."plain" to'):
            read(reader, planned)


def test_a_policy_that_hides_rows_is_an_error_and_no_shorter_copy(
    loaded: str, role: Callable[..., str]
) -> None:
    psql(
        loaded,
        "alter table plain enable row level security",
        "create policy few on plain using (id < 10)",
    )
    reader = role("grant select on plain to {}")
    with exported(loaded) as snapshot:
        planned = plan(reader, "plain", snapshot)
        with pytest.raises(AccessRefused, match="row-level security"):
            read(reader, planned)


def test_a_task_that_comes_too_late_reads_nothing(loaded: str) -> None:
    with exported(loaded) as snapshot:
        planned = plan(loaded, "plain", snapshot)
    with pytest.raises(SnapshotLost):
        read(loaded, planned)


def test_an_unnamed_snapshot_is_never_read(loaded: str) -> None:
    with exported(loaded) as snapshot:
        planned = plan(loaded, "plain", replace(snapshot, name="00000000-00000000-1"))
        with pytest.raises(SnapshotLost):
            read(loaded, planned)
