"""What comes to a target a second time: copies of tables, and dead letters that are redriven."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, setup
from pgstream_dagster.sinks.control import redrive, sink_letters
from pgstream_dagster.upkeep.reconcile_sink import reconcile_sink
from tests.support.harness.replica import deliver, environment
from tests.support.harness.runner import catch_up
from tests.support.plugins.cluster import psql

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
    name = f"p_{conninfo_to_dict(dsn)['dbname']}"
    (tmp_path / "pgstream.yaml").write_text(FILE.format(name=name))
    given = {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(tmp_path / "lake"),
        "PGSTREAM_STATE": str(tmp_path / "state"),
    }
    environment.update(given)
    made = Pipeline.from_file(tmp_path / "pgstream.yaml", environment)
    setup(made)
    deliver(made, environment)
    return made


def columns(dsn: str) -> list[str]:
    return [
        name
        for (name,) in psql(
            dsn,
            "select attname from pg_attribute where attrelid = 'people'::regclass and attnum > 0"
            " and not attisdropped order by attnum",
        )
    ]


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
