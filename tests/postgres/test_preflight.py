"""Preflight: what would go wrong later is found before, with the statement that helps."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgstream_dagster.config import SourceConfig
from pgstream_dagster.errors import PreflightFailed, TableLocked
from pgstream_dagster.source import publication
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.preflight import Finding, Severity, preflight, require, unfit_findings
from pgstream_dagster.source.publication import VIA_ROOT, Tables
from tests.support.plugins.cluster import OwnServer, psql
from tests.support.plugins.wait import until

pytestmark = pytest.mark.every_major


def source(tables: Tables = "all", exclude: Sequence[str] = ()) -> SourceConfig:
    return SourceConfig(slot="s", publication="p", tables=tables, exclude=exclude)


def findings(dsn: str, tables: Tables = "all") -> list[Finding]:
    with connect(dsn) as connection:
        return preflight(connection, source(tables))


def errors(dsn: str, tables: Tables = "all") -> list[Finding]:
    return [f for f in findings(dsn, tables) if f.severity is Severity.ERROR]


def only_error(dsn: str, tables: Tables = "all") -> Finding:
    (error,) = errors(dsn, tables)
    return error


def checks(reported: list[Finding]) -> set[str]:
    return {finding.check for finding in reported}


def repaired(dsn: str, tables: Tables = "all") -> None:
    """The remedy of the only error, run as it is written, leaves none."""
    reported = only_error(dsn, tables)
    statement = reported.remedy.partition("run ")[2].partition(", or ")[0]
    assert statement, f"no statement in {reported.remedy!r}"
    psql(dsn, statement)
    assert errors(dsn, tables) == []


def test_a_sound_source_has_no_error_and_says_what_ddl_is_not_seen(dsn: str) -> None:
    psql(dsn, "create table t (id int primary key, x text)")
    reported = findings(dsn)
    require(reported)
    assert "ddl" in checks(reported)
    assert [f.severity for f in reported] == sorted(
        (f.severity for f in reported), key=list(Severity).index
    )


def test_a_published_table_that_is_locked_is_named_and_not_waited_for(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psql(dsn, "create table t (id int primary key)", "create publication p for all tables")
    limit = publication.limit_lock_waits
    monkeypatch.setattr(publication, "limit_lock_waits", lambda session: limit(session, 0.2))
    with psycopg.connect(dsn) as holder:
        holder.execute("lock table t in access exclusive mode")
        with pytest.raises(TableLocked) as caught:
            findings(dsn)
        assert caught.value.table == "public.t"
        assert caught.value.held_by == [holder.info.backend_pid]
    assert errors(dsn) == []


def test_all_errors_are_reported_at_once(dsn: str) -> None:
    psql(dsn, "create table a (id int)", "create table b (id int)")
    with pytest.raises(PreflightFailed, match="2 problem") as caught:
        require(findings(dsn))
    assert "table 'public.a' has no replica identity" in str(caught.value)
    assert "table 'public.b' has no replica identity" in str(caught.value)


# --- server -----------------------------------------------------------------------------------


def test_wal_level_and_full_slots_are_found(own_postgres: OwnServer) -> None:
    psql(own_postgres.dsn, "create table t (id int primary key)")
    own_postgres.settings |= {
        "wal_level": "replica",
        "max_replication_slots": "0",
        "max_wal_senders": "1",
    }
    own_postgres.restart()
    reported = errors(own_postgres.dsn)
    assert checks(reported) == {"wal_level", "slots", "senders"}
    texts = " ".join(str(finding) for finding in reported)
    assert "alter system set wal_level = 'logical'" in texts
    assert "alter system set max_replication_slots = 2" in texts
    assert "alter system set max_wal_senders = 3" in texts


def test_limits_that_end_a_slot_are_warned_of(own_postgres: OwnServer) -> None:
    psql(own_postgres.dsn, "create table t (id int primary key)")
    unlimited = {f.check: f.severity for f in findings(own_postgres.dsn, ["t"])}
    assert unlimited["wal_keep_size"] is Severity.NOTE
    psql(
        own_postgres.dsn,
        "alter system set max_slot_wal_keep_size = '10GB'",
        "select pg_reload_conf()",
    )
    expected = {"wal_keep_size"}
    if own_postgres.major >= 18:
        psql(
            own_postgres.dsn,
            "alter system set idle_replication_slot_timeout = '1h'",
            "select pg_reload_conf()",
        )
        expected.add("idle_slot_timeout")
    warned = [f for f in findings(own_postgres.dsn, ["t"]) if f.severity is Severity.WARNING]
    assert checks(warned) == expected


def test_a_standby_is_refused(own_postgres: OwnServer) -> None:
    """P123: the publication and the marks are made on the primary, so the stream is there, too."""
    from pathlib import Path

    psql(own_postgres.dsn, "create table t (id int primary key)")
    folder = psql(own_postgres.dsn, "show data_directory")[0][0]
    own_postgres.stop()
    Path(folder, "standby.signal").touch()
    own_postgres.start()
    assert "standby" in checks(errors(own_postgres.dsn))


@pytest.mark.parametrize(
    ("encoding", "severity"), [("SQL_ASCII", Severity.ERROR), ("LATIN1", Severity.NOTE)]
)
def test_an_encoding_that_is_not_utf8_is_found(dsn: str, encoding: str, severity: Severity) -> None:
    name = f"{psql(dsn, 'select current_database()')[0][0]}_e"
    psql(dsn, f"create database {name} encoding '{encoding}' locale 'C' template template0")
    try:
        other = make_conninfo(dsn, dbname=name)
        psql(other, "create table t (id int primary key)")
        (reported,) = [f for f in findings(other) if f.check == "encoding"]
        assert reported.severity is severity
    finally:
        psql(dsn, f"drop database {name} with (force)")


def test_missing_rights_are_found_and_their_remedies_help(dsn: str) -> None:
    ((database,),) = psql(dsn, "select current_database()")
    role = f"r_{database}"
    psql(
        dsn,
        f"create role {role} login",
        "create schema app",
        "create table app.t (id int primary key)",
        "create table app.safe (id int primary key, whose text)",
        "alter table app.safe enable row level security",
    )
    try:
        ours = make_conninfo(dsn, user=role)
        reported = errors(ours)
        assert sorted(finding.check for finding in reported) == [
            "owner",
            "replication_right",
            "row_security",
            "select_right",
        ]
        for finding in reported:
            psql(dsn, finding.remedy.partition("run ")[2])
        assert errors(ours) == []
        with connect(ours) as connection:
            tables = publication.published(connection, "p")
        assert [table.full_name for table in tables] == ["app.safe", "app.t"]
    finally:
        psql(dsn, f"drop owned by {role} cascade", f"drop role {role}")


def test_a_role_that_may_not_create_in_the_database_is_given_the_remedy(dsn: str) -> None:
    role = f"r_{psql(dsn, 'select current_database()')[0][0]}"
    psql(
        dsn,
        f"create role {role} login replication",
        f"create schema app authorization {role}",
        "create table app.t (id int primary key)",
        f"alter table app.t owner to {role}",
    )
    try:
        ours = make_conninfo(dsn, user=role)
        (reported,) = errors(ours)
        assert reported.check == "create_right"
        psql(dsn, reported.remedy.partition("run ")[2])
        assert errors(ours) == []
    finally:
        psql(dsn, f"drop owned by {role} cascade", f"drop role {role}")


def test_for_all_tables_is_warned_of_and_a_list_is_not(dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)", "create table tmp (id int)")
    assert "all_tables" not in checks(findings(dsn))  # tmp is left out, so it will be a list
    assert "all_tables" not in checks(findings(dsn, ["t"]))
    with connect(dsn) as connection:
        reported = preflight(connection, source(exclude=["tmp"]))
    assert {"replica_identity", "all_tables"}.isdisjoint(checks(reported))
    assert "new_tables" in checks(reported)
    psql(dsn, "drop table tmp")
    (warned,) = [f for f in findings(dsn) if f.check == "all_tables"]
    assert warned.severity is Severity.WARNING
    assert "source.exclude" in warned.remedy


def test_a_stream_that_may_become_a_synchronous_standby_is_warned_of(
    own_postgres: OwnServer,
) -> None:
    psql(own_postgres.dsn, "create table t (id int primary key)")

    def is_warned(names: str) -> bool:
        psql(
            own_postgres.dsn,
            f"alter system set synchronous_standby_names = '{names}'",
            "select pg_reload_conf()",
        )
        until(lambda: psql(own_postgres.dsn, "show synchronous_standby_names") == [(names,)])
        return "synchronous" in checks(findings(own_postgres.dsn))

    assert [is_warned(names) for names in ("*", "ANY 1 (*)", "a, b")] == [True, True, False]


def test_tables_that_a_publication_by_hand_lacks_are_named_with_the_statement(dsn: str) -> None:
    psql(
        dsn,
        "create table a (id int primary key)",
        'create table "B" (id int primary key)',
        "create publication p for table a with (publish_via_partition_root = true)",
    )
    (reported,) = [f for f in findings(dsn) if f.check == "not_published"]
    assert reported.severity is Severity.WARNING
    psql(dsn, reported.remedy.partition("run ")[2].partition(", or ")[0])
    assert "not_published" not in checks(findings(dsn))


# --- which tables -----------------------------------------------------------------------------


def test_what_cannot_be_captured_is_refused_by_name_with_its_reason(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int primary key)",
        "create unlogged table u (id int primary key)",
        "create view v as select 1",
        "create materialized view m as select 1",
        "create foreign data wrapper w",
        "create server s foreign data wrapper w",
        "create foreign table f (id int) server s",
    )
    reported = errors(dsn, ["t", "u", "v", "m", "f"])
    assert checks(reported) == {"not_replicable"}
    texts = {str(finding) for finding in reported}
    for name, reason in (
        ("u", "an unlogged table's changes are not in the WAL"),
        ("v", "a view has no rows of its own"),
        ("m", "a materialized view is rewritten"),
        ("f", "a foreign table's changes are not in this server's WAL"),
    ):
        assert any(f"'public.{name}'" in text and reason in text for text in texts)
    assert errors(dsn, ["*"]) == []
    assert errors(dsn, "all") == []


def test_an_unlogged_table_can_be_logged(dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)", "create unlogged table u (id int primary key)")
    repaired(dsn, ["t", "u"])


def test_a_pattern_without_a_table_is_a_mistake_by_name_and_a_warning_by_wildcard(dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)")
    reported = {f.fact: f for f in findings(dsn, ["t", "typo", "none.*"]) if f.check == "unmatched"}
    assert sorted(f.severity for f in reported.values()) == [Severity.ERROR, Severity.WARNING]
    assert any("'typo' matches no table" in fact for fact in reported)


def test_a_setting_that_names_no_captured_table_is_a_warning(dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)", "create table out (id int primary key)")
    settings = [
        *(("search.t.table", table) for table in ("public.t", "public.T", "out")),
        *(("tables.include", pattern) for pattern in ("*.*", "shop.*", "public.t")),
        *(("tables.exclude", table) for table in ("out", "typo")),
    ]
    with connect(dsn) as connection:
        publication.ensure(connection, "p", "all")
        reported = preflight(connection, source(["t"]), settings)
    assert {(f.severity, f.fact) for f in reported if f.check == "unmatched"} == {
        (Severity.WARNING, "search.t.table names 'public.T', which does not exist"),
        (Severity.WARNING, "search.t.table names 'public.out', which is not captured"),
        (Severity.WARNING, "tables.exclude names 'public.typo', which does not exist"),
    }


def test_a_table_that_is_left_out_for_its_identity_is_not_captured(dsn: str) -> None:
    psql(dsn, "create table t (id int primary key)", "create table bag (a int)")
    with connect(dsn) as connection:
        reported = preflight(connection, source(), [("search.bag.table", "public.bag")])
    (finding,) = [f for f in reported if f.check == "unmatched"]
    assert "'public.bag', which is not captured" in finding.fact


def test_a_table_that_a_publication_by_hand_lacks_is_not_captured(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int primary key)",
        "create table out (id int primary key)",
        "create publication p for table t",
    )
    settings = [("sinks.all.tables", "t"), ("sinks.all.tables", "out")]
    with connect(dsn) as connection:
        reported = preflight(connection, source(), settings)
    (finding,) = [f for f in reported if f.check == "unmatched"]
    assert "'public.out'" in finding.fact


def test_a_database_without_tables_has_nothing_to_capture(dsn: str) -> None:
    assert only_error(dsn).check == "no_tables"


def test_a_publication_by_hand_must_publish_every_operation(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int primary key)",
        "create publication p for all tables with (publish = 'insert, update')",
    )
    assert only_error(dsn).check == "publish"
    repaired(dsn)


# --- replica identity -------------------------------------------------------------------------


WITHOUT_IDENTITY = pytest.mark.parametrize(
    ("definition", "alter"),
    [
        ("id int", ""),
        ("id int primary key deferrable", ""),
        ("id int primary key", "alter table t replica identity nothing"),
    ],
)


@WITHOUT_IDENTITY
def test_a_table_whose_updates_would_fail_is_an_error_where_it_is_the_only_one(
    dsn: str, definition: str, alter: str
) -> None:
    psql(dsn, f"create table t ({definition})", *([alter] if alter else []))
    reported = only_error(dsn)
    assert reported.check == "replica_identity"
    assert "its UPDATEs and DELETEs would fail in your application" in reported.fact
    with connect(dsn) as connection:
        publication.ensure(connection, "p", "all")
    psql(dsn, "insert into t values (1)")
    with pytest.raises(Exception, match="does not have a replica identity"):
        psql(dsn, "update t set id = 2")
    repaired(dsn)
    psql(dsn, "update t set id = 2")


@WITHOUT_IDENTITY
def test_a_table_whose_updates_would_fail_is_left_out_and_blocks_no_other(
    dsn: str, definition: str, alter: str
) -> None:
    psql(
        dsn,
        f"create table t ({definition})",
        *([alter] if alter else []),
        "create table sound (id int primary key)",
        "insert into t values (1)",
    )
    reported = findings(dsn)
    require(reported)
    (left_out,) = [f for f in reported if f.leaves_out is not None]
    assert (left_out.check, left_out.severity) == ("replica_identity", Severity.WARNING)
    with connect(dsn) as connection:
        publication.ensure(connection, "p", "all", left_out={left_out.leaves_out or 0})
        assert [t.full_name for t in publication.published(connection, "p")] == ["public.sound"]
    psql(dsn, "update t set id = 2")
    psql(dsn, left_out.remedy.partition("run ")[2].partition(", or")[0])
    assert "replica_identity" not in checks(findings(dsn))


def test_a_table_made_later_without_a_key_under_all_tables_is_named_at_once(dsn: str) -> None:
    psql(dsn, "create table sound (id int primary key)")
    with connect(dsn) as connection:
        publication.ensure(connection, "p", "all")
    psql(dsn, "create table t (id int)", "insert into t values (1)")
    reported = findings(dsn)
    require(reported)
    (named,) = [f for f in reported if f.check == "replica_identity"]
    assert "'public.t'" in named.fact
    assert "is published: its UPDATEs and DELETEs fail" in named.fact
    psql(dsn, named.remedy.partition("run ")[2])
    psql(dsn, "update t set id = 2")
    assert "replica_identity" not in checks(findings(dsn))


@pytest.mark.parametrize(
    "definition",
    [
        "id int, x text",
        "id int primary key deferrable, x text",
        "id int primary key, x text",
    ],
)
def test_full_identity_is_always_enough(dsn: str, definition: str) -> None:
    psql(dsn, f"create table t ({definition})", "alter table t replica identity full")
    assert errors(dsn) == []


def test_an_index_identity_whose_index_is_gone_is_an_error(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int not null)",
        "create unique index i on t (id)",
        "alter table t replica identity using index i",
    )
    assert errors(dsn) == []
    psql(dsn, "drop index i")
    assert only_error(dsn).check == "replica_identity"


@pytest.mark.parametrize(
    "definition",
    [
        "id int, g int generated always as (id * 2) stored, primary key (id, g)",
        "id int, g int generated always as (id * 2) stored primary key",
    ],
)
def test_a_key_with_a_generated_column_that_is_not_sent_is_an_error(
    dsn: str, definition: str
) -> None:
    psql(dsn, f"create table t ({definition})", "insert into t values (1)")
    with connect(dsn) as connection:
        version = connection.info.server_version
    if version < 180000:
        assert "'public.t'" in only_error(dsn).fact  # before there is a publication, and after
        psql(dsn, f"create publication p for all tables with ({VIA_ROOT})")
        assert only_error(dsn).check == "replica_identity"
        repaired(dsn)
        return
    assert errors(dsn) == []  # setup publishes it
    psql(dsn, f"create publication p for all tables with ({VIA_ROOT})")
    assert only_error(dsn).check == "replica_identity"
    with pytest.raises(Exception, match="unpublished generated columns"):
        psql(dsn, "update t set id = 3")
    repaired(dsn)
    psql(dsn, "update t set id = 3")


def test_a_generated_key_column_is_no_error_where_nothing_needs_an_identity(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int generated always as (1) stored primary key)",
        "create publication p for all tables with (publish = 'insert')",
    )
    assert checks(errors(dsn)) == {"publish"}


@pytest.mark.majors(since=18)  # NOT NULL ... NOT VALID
@pytest.mark.parametrize("has_nulls", [True, False])
def test_an_identity_index_that_may_have_nulls_is_an_error(dsn: str, has_nulls: bool) -> None:
    psql(dsn, "create table t (k int)", "create unique index i on t (k)")
    if has_nulls:
        psql(dsn, "insert into t values (null), (null)")
    psql(
        dsn,
        'alter table t add constraint "N" not null k not valid',
        "alter table t replica identity using index i",
    )
    reported = only_error(dsn)
    assert (reported.check, "'public.t'" in reported.fact) == ("replica_identity", True)
    validate, full = reported.remedy.split("run ")[1:]
    psql(dsn, full if has_nulls else validate.partition(", or ")[0])
    assert errors(dsn) == []


def test_an_insert_only_publication_needs_no_identity(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int)",
        "create publication p for all tables with (publish = 'insert')",
    )
    assert checks(errors(dsn)) == {"publish"}


def test_a_key_outside_the_column_list_is_an_error(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int primary key, x int)",
        "create publication p for table t (x)",
    )
    assert only_error(dsn).check == "column_list"


def test_a_row_filter_on_large_values_needs_full(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int primary key, x text)",
        "create table small (id int primary key, y int)",
        "create publication p for table t where (id > 5), small where (id > 5)",
    )
    assert only_error(dsn).check == "row_filter"
    repaired(dsn)


def test_full_identity_with_unpublished_generated_columns_fails_from_18_on(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int, g int generated always as (id * 2) stored)",
        "alter table t replica identity full",
        "insert into t values (1)",
    )
    assert errors(dsn) == []
    with connect(dsn) as connection:
        publication.ensure(connection, "p", "all")
        version = connection.info.server_version
    psql(dsn, "update t set id = 2", "drop publication p", "create publication p for all tables")
    if version < 180000:
        assert errors(dsn) == []
        psql(dsn, "update t set id = 3")
        return
    assert only_error(dsn).check == "generated_columns"
    with pytest.raises(Exception, match="unpublished generated columns"):
        psql(dsn, "update t set id = 3")
    repaired(dsn)
    psql(dsn, "update t set id = 3")


# --- partitions -------------------------------------------------------------------------------


def partitioned(dsn: str, key: str = "id int primary key") -> None:
    psql(
        dsn,
        f"create table t ({key}, x text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        "create table t2 partition of t for values from (10) to (20)",
    )


def test_a_partition_tree_with_one_key_is_sound(dsn: str) -> None:
    partitioned(dsn)
    assert errors(dsn) == []


def test_a_root_that_is_full_and_leaves_that_log_its_key_is_a_warning(dsn: str) -> None:
    partitioned(dsn)
    psql(dsn, "alter table t replica identity full", "alter table t1 replica identity full")
    assert errors(dsn) == []
    [reported] = [finding for finding in findings(dsn) if finding.check == "partition_identity"]
    assert reported.severity is Severity.WARNING
    assert "'public.t2'" in reported.fact


def test_a_root_that_is_full_without_a_key_and_leaves_that_are_not_is_an_error(dsn: str) -> None:
    partitioned(dsn, key="id int")
    psql(dsn, "alter table t replica identity full", "alter table t1 replica identity full")
    psql(dsn, "alter table t2 add primary key (id)")
    reported = only_error(dsn)
    assert reported.check == "partition_identity"
    assert "'public.t2'" in reported.fact
    repaired(dsn)


def test_leaves_that_are_full_under_a_key_are_sound(dsn: str) -> None:
    partitioned(dsn)
    psql(dsn, "alter table t1 replica identity full")
    assert errors(dsn) == []


def test_leaves_without_identity_are_named_themselves(dsn: str) -> None:
    partitioned(dsn)
    psql(dsn, "alter table t2 replica identity nothing")
    assert "'public.t2'" in only_error(dsn).fact


@pytest.mark.parametrize("what", ["unlogged", "foreign"])
def test_a_partition_the_stream_never_sees_is_an_error(dsn: str, what: str) -> None:
    psql(
        dsn,
        "create table t (id int, x text) partition by range (id)",
        "alter table t replica identity full",
    )
    if what == "unlogged":
        psql(
            dsn,
            "create unlogged table t1 partition of t for values from (0) to (10)",
            "alter table t1 replica identity full",
        )
    else:
        psql(
            dsn,
            "create foreign data wrapper w",
            "create server s foreign data wrapper w",
            "create foreign table t1 partition of t for values from (0) to (10) server s",
        )
    assert only_error(dsn).check == "not_replicable"
    repaired(dsn)


def test_a_half_detached_partition_of_all_tables_is_finalized_by_the_remedy(dsn: str) -> None:
    psql(
        dsn,
        "create table t (id int primary key) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        f"create publication p for all tables with ({VIA_ROOT})",
    )
    hasty = make_conninfo(dsn, options="-c statement_timeout=200")
    with psycopg.connect(dsn) as reader:
        reader.execute("select from t")  # DETACH waits for this transaction
        with pytest.raises(psycopg.errors.QueryCanceled):
            psql(hasty, "alter table t detach partition t1 concurrently")
    with connect(dsn) as session:
        [finding] = [f for f in unfit_findings(session, source(), []) if f.check == "half_detached"]
    assert "'public.t1' of 'public.t'" in finding.fact
    statement = finding.remedy.removeprefix("run ").removesuffix(" before a row is written to it")
    psql(dsn, statement)
    assert "half_detached" not in checks(findings(dsn))


def test_inheritance_children_are_mentioned(dsn: str) -> None:
    psql(
        dsn,
        "create table parent (id int primary key)",
        "create table child (primary key (id)) inherits (parent)",
    )
    reported = findings(dsn)
    assert "children" in checks(reported)
    require(reported)


def test_names_of_any_kind_are_quoted_in_remedies(dsn: str) -> None:
    psql(dsn, 'create schema "Sch.""ema"', 'create table "Sch.""ema"."Tab le" (id int)')
    statement = only_error(dsn).remedy.partition("run ")[2]
    psql(dsn, statement)
    assert errors(dsn) == []


def test_a_table_that_the_pipeline_leaves_out_by_now_is_not_named_as_unfit(dsn: str) -> None:
    psql(
        dsn,
        "create table a (id int primary key)",
        "create table b (id int primary key)",
        "create publication p for table b",
        "alter table a set unlogged",
    )
    [(oid,)] = psql(dsn, "select 'a'::regclass::oid::bigint")

    def unfit(*tables: str) -> list[str]:
        with connect(dsn) as session:
            return [f.check for f in unfit_findings(session, source(tables), captured=[oid])]

    assert "not_replicable" in unfit("a", "b")
    assert "not_replicable" not in unfit("b")
