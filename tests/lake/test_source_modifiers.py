"""Modifiers in front of the log: what they take away is in no file of the lake and the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from pgstream_dagster.capture import spool
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import parse
from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.errors import MissingSetting, NewColumn, NotSetUp, RulesRefused
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.preflight import Severity
from pgstream_dagster.tables.read import read_table
from pgstream_dagster.upkeep.check import check
from pgstream_dagster.upkeep.reconcile import reconcile
from pgstream_dagster.upkeep.resnapshot import resnapshot
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import runner
from tests.support.plugins.cluster import is_free, psql
from tests.support.plugins.lake import SETTINGS
from tests.support.plugins.wait import until

PLAIN = b"PLAINTEXT"
"""Part of every value that must never be stored."""

KEY = "PGSTREAM_MODIFIER_KEY"
ENVIRONMENT = {KEY: "a key of the tests, of 32 bytes."}

FILE = """
pipeline: shop
capture: {catalog_check_seconds: 1}
copy: {ranges: 2}
source: {modifiers: [mask]}
modifiers:
  mask:
    new_columns: NEW_COLUMNS
    transform:
      public.people: {id: {}, email: {name: hash}, phone: {name: masking}, note: {}}
      public.keyed: {email: {name: encrypted_aes_siv}, city: {name: hash}}
      public.audit: {who: {name: hash}, what: {name: "null"}}
      public.whole: {id: {}, doc: {name: hash}, n: {}}
      public.wide: {id: {}, v: {name: masking}}
    drop: {"*.*": [secret]}
"""

TABLES = [
    """create table people (id int primary key, email text default 'PLAINTEXT default', phone text,
    note text, secret text not null default 'PLAINTEXT secret')""",
    """insert into people select i, 'PLAINTEXT copied ' || i, 'PLAINTEXT ' || i, 'n' || i
    from generate_series(1, 300) i""",
    "create table keyed (email text primary key, city text)",
    "insert into keyed select 'PLAINTEXT key ' || i, 'PLAINTEXT city' from generate_series(1, 9) i",
    "create table audit (who text, what text)",
    "alter table audit replica identity full",
    "insert into audit select 'PLAINTEXT who ' || i % 3, 'PLAINTEXT' from generate_series(1, 9) i",
    "create table whole (id int primary key, doc text, n int)",
    "alter table whole alter doc set storage external",
    "alter table whole replica identity full",
    "insert into whole select i, repeat('PLAINTEXT ', 400) || i, 0 from generate_series(1, 200) i",
    "create table wide (id int primary key, v text)",  # in two of Spark's tasks
    "insert into wide select i, repeat('PLAINTEXT ', 190) from generate_series(1, 9000) i",
]

WORK = [
    "insert into people values (1000, 'PLAINTEXT new', 'PLAINTEXT', 'n', 'PLAINTEXT')",
    "update people set email = 'PLAINTEXT updated' where id < 50",
    "update people set id = id + 5000 where id between 60 and 70",
    "delete from people where id between 80 and 90",
    "insert into keyed values ('PLAINTEXT late', null)",
    "update keyed set city = 'PLAINTEXT moved' where email like '% 1'",
    "update keyed set email = 'PLAINTEXT renamed' where email like '% 2'",
    "delete from keyed where email like '% 3'",
    "update audit set what = 'PLAINTEXT other' where who like '% 1'",
    "delete from audit where ctid = (select min(ctid) from audit)",
    "update whole set n = 1 where id < 20",
    "update whole set id = id + 9000 where id between 20 and 30",
    "update whole set doc = 'PLAINTEXT short' where id between 40 and 50",
    "delete from whole where id between 60 and 70",
    "alter table people add column added text default 'PLAINTEXT of old rows'",
    "alter table people rename email to mail",
    "insert into people values (1001, 'PLAINTEXT renamed column', null, 'n', 'PLAINTEXT', null)",
    "alter table people rename to clients",
    "alter table whole rename to entire",
    "insert into entire values (9998, 'PLAINTEXT before the restart', 0)",
    "insert into clients values (1002, 'PLAINTEXT renamed table', null, 'n', 'PLAINTEXT', null)",
]


def pipeline_of(dsn: str, folder: Path, *, new_columns: str = "drop", **changed: Any) -> Pipeline:
    config = parse(FILE.replace("NEW_COLUMNS", new_columns))
    lake, state = Lake(str(folder / "lake")), folder / "state"
    made = Pipeline(config, dsn, lake, SETTINGS, state, environment=ENVIRONMENT)
    return replace(made, **changed)


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, spark: SparkSession) -> Pipeline:
    psql(dsn, *TABLES)
    return pipeline_of(dsn, tmp_path)


def stored(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file, its bytes; of Parquet the values as well."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if content[:4] == b"PAR1":
            content += repr(pq.ParquetFile(file).read().to_pylist()).encode()
        yield file, content


def assert_nothing_plain(folder: Path) -> None:
    files = dict(stored(folder))
    assert len(files) > 10
    assert [file for file, content in files.items() if PLAIN in content] == []


@pytest.mark.long
def test_what_they_take_away_is_in_no_file_and_the_log_equals_the_masked_source(
    pipeline: Pipeline, dsn: str, tmp_path: Path
) -> None:
    setup(pipeline)
    assert_nothing_plain(tmp_path)
    with runner.streaming(pipeline):
        psql(dsn, *WORK)
        assert reconcile(pipeline).identical
    psql(dsn, "update clients set note = 'before the copy'")
    psql(dsn, "insert into entire values (9999, 'PLAINTEXT after the restart', 0)")
    snapshot(pipeline, ["public.clients", "public.keyed", "public.entire"])
    runner.catch_up(pipeline)
    until(lambda: is_free(dsn, "pgstream_shop"))
    psql(dsn, "select pg_drop_replication_slot('pgstream_shop')")
    resnapshot(pipeline)
    with runner.streaming(pipeline):
        psql(dsn, "update keyed set city = 'PLAINTEXT after the resnapshot'")
        assert reconcile(pipeline).identical
    assert_nothing_plain(tmp_path)


@pytest.mark.long
def test_rows_are_found_again_by_their_masked_keys(pipeline: Pipeline, dsn: str) -> None:
    setup(pipeline)
    psql(dsn, *WORK)
    runner.catch_up(pipeline)
    [(expected,)] = psql(dsn, "select count(*) from keyed")
    rows = read_table(pipeline, "public.keyed").rows.collect()
    assert len({row["email"] for row in rows}) == len(rows) == expected
    people = read_table(pipeline, "public.clients").rows.collect()
    assert {row["secret"] for row in people} == {None}
    assert {len(row["mail"]) for row in people} == {64}


def spooled_bytes(folder: Path) -> Sequence[bytes]:
    """What the files without a name in a folder have, of this process."""
    contents: list[bytes] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if str(descriptor.readlink()).startswith(str(folder)):
                contents.append(descriptor.read_bytes())
        except OSError:
            continue
    return contents


@pytest.mark.long
def test_a_large_transaction_waits_encrypted(
    pipeline: Pipeline, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "FRAME_BYTES", 1 << 16)
    psql(
        dsn,
        f"alter database {conninfo_to_dict(dsn)['dbname']} set logical_decoding_work_mem = '64kB'",
    )
    setup(pipeline)
    state = tmp_path / "state"
    with runner.streaming(pipeline), closing(psycopg.connect(dsn)) as open_transaction:
        open_transaction.execute(
            "insert into audit select 'PLAINTEXT large', repeat('PLAINTEXT ', 100)"
            " from generate_series(1, 3000)"
        )
        until(lambda: any(spooled_bytes(state)))
        assert not any(PLAIN in content for content in spooled_bytes(state))
        open_transaction.commit()
        assert reconcile(pipeline, ["public.audit"]).identical
    assert_nothing_plain(tmp_path)


@pytest.mark.long
def test_other_rules_bring_a_copy_and_until_then_no_row_is_misplaced(
    pipeline: Pipeline, dsn: str, tmp_path: Path
) -> None:
    setup(pipeline)
    other = replace(pipeline, environment={KEY: "another key of the tests, 33 bytes."})
    with runner.streaming(other):
        psql(dsn, "update keyed set city = 'PLAINTEXT elsewhere'")
        compared = reconcile(other)
        assert compared.identical, [(t.table, t.reason, t.difference) for t in compared.tables]
    assert_nothing_plain(tmp_path)


def test_a_column_without_a_rule_stops_the_stream_before_it_is_stored(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    psql(dsn, *TABLES)
    pipeline = pipeline_of(dsn, tmp_path, new_columns="stop")
    setup(pipeline)
    psql(
        dsn,
        "alter table people add column added text",
        "insert into people values (9000, null, null, null, 'PLAINTEXT', 'PLAINTEXT added')",
    )
    with pytest.raises(NewColumn, match="added"):
        runner.catch_up(pipeline)
    assert_nothing_plain(tmp_path)


def refused_by_check(pipeline: Pipeline) -> list[str]:
    return [finding.fact for finding in check(pipeline) if finding.severity is Severity.ERROR]


def test_without_the_key_nothing_is_made(dsn: str, tmp_path: Path) -> None:
    psql(dsn, *TABLES)
    pipeline = pipeline_of(dsn, tmp_path, environment={})
    assert [KEY in fact for fact in refused_by_check(pipeline)] == [True]
    with pytest.raises(MissingSetting, match=KEY):
        setup(pipeline)
    assert list(tmp_path.iterdir()) == []
    assert psql(dsn, "select 1 from pg_publication") == []


def test_a_stream_without_the_key_lands_nothing(pipeline: Pipeline, dsn: str) -> None:
    setup(pipeline)
    psql(dsn, *WORK)
    with pytest.raises(MissingSetting, match=KEY):
        runner.catch_up(replace(pipeline, environment={}))
    with pytest.raises(MissingSetting, match=KEY):
        snapshot(replace(pipeline, environment={}), ["public.keyed"])


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("alter table people rename email to mail", "the table has no such column"),
        ("drop table keyed", "it is not published"),
        ("alter table keyed alter city type point using null", "takes"),
    ],
)
def test_rules_that_miss_a_column_or_table_are_refused_before_a_slot_is_made(
    dsn: str, tmp_path: Path, wrong: str, problem: str
) -> None:
    psql(dsn, *TABLES, wrong)
    pipeline = pipeline_of(dsn, tmp_path)
    assert [problem in fact for fact in refused_by_check(pipeline)] == [True]
    with pytest.raises(RulesRefused, match=problem):
        setup(pipeline)
    assert psql(dsn, "select 1 from pg_publication") == []
    with pytest.raises(NotSetUp):
        pipeline.require_set_up()


@pytest.mark.long
def test_a_new_epoch_does_not_begin_with_a_rule_for_a_table_that_has_another_name_there(
    pipeline: Pipeline, dsn: str, replica: str, tmp_path: Path
) -> None:
    setup(pipeline)
    psql(dsn, "select pg_drop_replication_slot('pgstream_shop')")  # a name of the whole server
    psql(replica, *TABLES, "alter table keyed rename to renamed")
    restored = pipeline_of(replica, tmp_path)
    with pytest.raises(RulesRefused, match="it is not published"):
        resnapshot(restored)
    assert psql(replica, "select 1 from pg_publication") == []
    psql(replica, "alter table renamed rename to keyed")
    resnapshot(restored)
    assert_nothing_plain(tmp_path)
