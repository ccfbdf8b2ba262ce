"""What comes to a target a second time: copies of tables, and dead letters that are redriven."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pgstream_dagster import Pipeline, resnapshot, setup
from pgstream_dagster.errors import NotComparable
from pgstream_dagster.sinks.control import redrive, reset, sink_letters, sink_status
from pgstream_dagster.upkeep.reconcile_sink import reconcile_sink
from tests.support.harness.replica import (
    cursor_of,
    deliver,
    delivering,
    environment,
    has_received,
    set_up,
)
from tests.support.harness.runner import catch_up
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.one_major("newest")]

__all__ = ["environment"]  # a fixture

FILE = """
pipeline: {name}
source: {{tables: [people, bag]}}
sinks:
  replica:
    postgres: {{dsn_variable: REPLICA_DSN}}
    modifiers: [mask]
modifiers:
  mask: {{drop: {{"public.people": [secret]}}}}
"""

KEPT = "select to_jsonb(p) - 'secret' - 'size' from people p order by 1"

TABLES = (
    (
        "create table people (id int primary key, name text, secret text not null default 'x',"
        " size int generated always as (length(secret)) stored,"
        " loud text generated always as (upper(name)) stored, check (secret <> ''), unique (name))"
    ),
    "create index on people (secret)",
    "create index on people (lower(name))",
    "insert into people select n, 'n' || n, 's' from generate_series(1, 9) n",
    "create table bag (a int, b text)",
    "alter table bag replica identity full",
    "insert into bag select 1, 'same' from generate_series(1, 5)",
)


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: object, environment: dict[str, str]) -> Pipeline:
    psql(dsn, *TABLES)
    return set_up(dsn, tmp_path, environment, FILE)


def columns(dsn: str) -> list[str]:
    return [
        name
        for (name,) in psql(
            dsn,
            "select attname from pg_attribute where attrelid = 'people'::regclass and attnum > 0"
            " and not attisdropped order by attnum",
        )
    ]


@pytest.mark.long
def test_a_copy_after_lost_changes_leaves_the_rows_of_the_source(
    pipeline: Pipeline, dsn: str, replica: str, environment: dict[str, str]
) -> None:
    # Where the source publishes generated columns, `size` comes as an ordinary one.
    assert [name for name in columns(replica) if name != "size"] == ["id", "name", "loud"]
    indexes = psql(replica, "select indexname from pg_indexes where tablename = 'people'")
    assert {name for (name,) in indexes} == {"people_pkey", "people_name_key", "people_lower_idx"}
    psql(dsn, "alter table people add note text default 'young'", "delete from people where id = 9")
    psql(dsn, "update people set name = 'N' || id where id < 3")
    psql(dsn, "update people set note = 'own' where id = 4")
    catch_up(pipeline)
    deliver(pipeline, environment)
    publication = pipeline.config.source.publication
    psql(
        dsn,
        f"alter publication {publication} drop table people, bag",
        "delete from people where id = 8",
        "update people set name = 'unseen' where id = 7",
        "delete from bag where ctid = (select min(ctid) from bag)",
        f"alter publication {publication} add table people, bag",
    )
    catch_up(pipeline)
    psql(dsn, "insert into people values (81, 'last', 's')")
    catch_up(pipeline)
    deliver(pipeline, environment)
    kept = "select id, name, note from people order by id"
    assert psql(replica, kept) == psql(dsn, kept)
    assert psql(replica, "select count(*) from bag") == [(4,)]
    done = reconcile_sink(pipeline, "replica", environment=environment)
    assert done.identical, done


@pytest.mark.long
def test_a_dead_letter_is_redriven_once_though_the_process_is_killed(
    pipeline: Pipeline, dsn: str, tmp_path: Path, replica: str, environment: dict[str, str]
) -> None:
    psql(replica, "alter table bag add constraint no_ice check (b <> 'ice')")
    psql(dsn, "insert into bag values (2, 'ice'), (2, 'ice'), (3, 'fire')")
    catch_up(pipeline)
    deliver(pipeline, environment)
    # The table has no key, so what comes after the refused change waits.
    states = [letter.state for letter in sink_letters(pipeline, "replica")]
    assert states == ["refused", "held", "held"]
    psql(replica, "alter table bag drop constraint no_ice")
    for failpoint in ("postgres_sink.applied", "postgres_sink.committed"):
        killed = subprocess.run(
            [sys.executable, "-m", "pgstream_dagster.cli", "sink", "redrive", "replica"],
            cwd=tmp_path,
            env={**os.environ, **environment, "PGSTREAM_FAILPOINT": failpoint},
            capture_output=True,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    [status] = redrive(pipeline, "replica")
    assert status.refused == 0
    assert sink_letters(pipeline, "replica") == []
    assert psql(replica, "select b from bag where a > 1 order by b") == [
        ("fire",),
        ("ice",),
        ("ice",),
    ]


@pytest.mark.long
def test_a_table_that_loses_its_key_and_gets_another_has_the_rows_of_the_source(
    pipeline: Pipeline, dsn: str, replica: str, environment: dict[str, str]
) -> None:
    for key in (
        ("alter table people drop constraint people_pkey, drop constraint people_name_key",),
        ("delete from people where id < 3", "alter table people add primary key (name)"),
    ):
        psql(
            dsn,
            *("begin", *key, "alter table people replica identity full", "commit"),
            "delete from people where id = 9",
            "update people set secret = 'u', name = name || '+' where id > 5",
            "insert into people select n, 'twice' || n, 's' from generate_series(1, 2) n",
        )
        psql(replica, "alter table people drop constraint if exists people_name_key")
        catch_up(pipeline)
        psql(dsn, "insert into bag values (7, 'passes the point of the copy')")
        catch_up(pipeline)
        deliver(pipeline, environment, every_table=True)
        assert sink_letters(pipeline, "replica") == []
        assert psql(replica, KEPT) == psql(dsn, KEPT)


def begun_again(pipeline: Pipeline, replica: str, environment: dict[str, str]) -> None:
    """Reset the sink, and deliver until the target has everything again."""
    before = cursor_of(replica)
    reset(pipeline, "replica", "start")
    with pipeline.open() as opened:
        watermark = opened.require_watermark()
        copies = {oid: int(point) for oid, (point, _) in opened.copied_relations().items()}

    def is_there() -> bool:
        cursor = cursor_of(replica)
        if cursor is None or before is None:
            return False
        is_other = (cursor.log, cursor.generation) != (before.log, before.generation)
        return is_other and has_received(replica, watermark, copies, every_table=True)

    with delivering(pipeline, environment):
        until(is_there, seconds=120)


@pytest.mark.long
def test_a_reset_leaves_the_rows_of_the_source(
    pipeline: Pipeline, dsn: str, replica: str, environment: dict[str, str]
) -> None:
    psql(dsn, "alter table people add note text default 'young'", "delete from people where id = 9")
    psql(dsn, "update people set name = 'N' || id where id < 3")
    psql(dsn, "insert into people values (10, 'new', 's')")
    psql(dsn, "insert into bag values (2, 'ice'), (3, 'fire')")
    psql(replica, "alter table bag add constraint no_ice check (b <> 'ice')")
    catch_up(pipeline)
    deliver(pipeline, environment)
    assert [letter.state for letter in sink_letters(pipeline, "replica")] == ["refused", "held"]
    psql(replica, "alter table bag drop constraint no_ice", "delete from people where id = 5")
    begun_again(pipeline, replica, environment)
    assert sink_letters(pipeline, "replica") == []
    assert psql(replica, KEPT) == psql(dsn, KEPT)
    done = reconcile_sink(pipeline, "replica", environment=environment)
    assert done.identical, done


@pytest.mark.long
def test_a_reset_delivers_a_table_that_was_dropped_and_created_since(
    pipeline: Pipeline, dsn: str, replica: str, environment: dict[str, str]
) -> None:
    psql(
        dsn,
        "drop table people",
        "create table people (id bigint primary key, more text, secret text)",
        f"alter publication {pipeline.config.source.publication} add table people",
        "insert into people select n, 'm' || n, 's' from generate_series(5, 15) n",
        "insert into bag values (2, 'ice')",
    )
    catch_up(pipeline)
    psql(dsn, "update people set more = 'own' where id = 7")
    catch_up(pipeline)
    deliver(pipeline, environment, every_table=True)
    psql(replica, "delete from people where id < 9")
    begun_again(pipeline, replica, environment)
    assert sink_letters(pipeline, "replica") == []
    assert psql(replica, KEPT) == psql(dsn, KEPT)
    done = reconcile_sink(pipeline, "replica", environment=environment)
    assert done.identical, done


@pytest.mark.long
def test_a_lake_that_was_made_again_changes_nothing_until_a_reset(
    pipeline: Pipeline, dsn: str, tmp_path: Path, replica: str, environment: dict[str, str]
) -> None:
    psql(dsn, f"select pg_drop_replication_slot('{pipeline.config.source.slot}')")
    psql(dsn, "alter table people add note text default 'young'", "delete from people where id = 9")
    psql(dsn, "create table late (id int primary key)")
    exchange_numbers(replica)
    environment |= {"PGSTREAM_LAKE": f"{tmp_path}/again", "PGSTREAM_STATE": f"{tmp_path}/states"}
    again = Pipeline.from_file(tmp_path / "pgstream.yaml", environment)
    setup(again)
    psql(dsn, "update people set name = 'N' || id where id < 3")
    catch_up(again)
    held, recorded = psql(replica, "select * from people"), psql(replica, RECORDED)
    with delivering(again, environment):
        until(lambda: "sink reset replica --from start" in str(sink_status(again)[0].error))
    with pytest.raises(NotComparable, match="another change log"):
        reconcile_sink(again, "replica", environment=environment)
    assert psql(replica, "select * from people") == held
    assert psql(replica, RECORDED) == recorded
    begun_again(again, replica, environment)
    assert psql(replica, KEPT) == psql(dsn, KEPT)
    done = reconcile_sink(again, "replica", environment=environment)
    assert done.identical, done


@pytest.mark.long
def test_a_lake_restored_under_a_target_that_is_ahead_is_named_until_a_reset(
    pipeline: Pipeline, dsn: str, tmp_path: Path, replica: str, environment: dict[str, str]
) -> None:
    shutil.copytree(tmp_path / "lake", tmp_path / "backup")
    psql(dsn, "insert into people values (10, 'lost', 's')")
    catch_up(pipeline)
    deliver(pipeline, environment)
    psql(dsn, "delete from people where id = 10", "update people set name = 'N1' where id = 1")
    environment |= {"PGSTREAM_LAKE": f"{tmp_path}/backup", "PGSTREAM_STATE": f"{tmp_path}/states"}
    restored = Pipeline.from_file(tmp_path / "pgstream.yaml", environment)
    delivered = cursor_of(replica)
    assert delivered is not None

    def error_of_sink(*facts: object) -> bool:
        error = sink_status(restored)[0].error or ""
        return all(str(fact) in error for fact in (*facts, "sink reset replica --from start"))

    with delivering(restored, environment):
        until(lambda: error_of_sink(delivered.end, "resnapshot"))
    resnapshot(restored)
    with delivering(restored, environment):  # the log is past the target's position now
        until(lambda: error_of_sink(delivered.end, "lacks what was committed between"))
    with pytest.raises(NotComparable, match="which the log does not have"):
        reconcile_sink(restored, "replica", environment=environment)
    assert psql(replica, "select count(*) from people where id = 10") == [(1,)]
    begun_again(restored, replica, environment)
    assert psql(replica, KEPT) == psql(dsn, KEPT)
    done = reconcile_sink(restored, "replica", environment=environment)
    assert done.identical, done


RECORDED = "select relation_id, version::text from pgstream.sink_tables order by relation_id"


def exchange_numbers(replica: str) -> None:
    """Give each of the two tables the OID of the other, as another server may."""
    recorded = psql(replica, RECORDED)
    for (oid, _), (_, version) in zip(recorded, reversed(recorded), strict=True):
        other = json.dumps(json.loads(version) | {"relation_id": oid})
        psql(
            replica,
            f"update pgstream.sink_tables set version = $v${other}$v$ where relation_id = {oid}",
        )
