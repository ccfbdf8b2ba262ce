"""Commands against a real Postgres and a real lake: what they print, how they exit."""

from __future__ import annotations

import pytest

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.lsn import Lsn
from tests.support.plugins.cluster import psql
from tests.support.plugins.lake import plant

pytestmark = pytest.mark.one_major("newest")


def test_first_hour_of_a_user(shell, spark):
    before = shell.json("status", code=1)
    assert before["problem"]["error"] == "NotSetUp"
    assert before["watermark"] is None

    printed = shell.pgstream("setup")
    assert "public.orders" in printed
    total, next_step = printed.splitlines()[-2:]
    assert total.startswith("copied 2 tables, 103 rows in ")
    assert next_step == "next: pgstream stream"
    assert shell.pgstream("setup") == "nothing to copy\n"

    psql(
        shell.dsn, "update orders set note = 'new' where id = 1", "insert into visits values ('c')"
    )
    assert "landed 2 changes" in shell.pgstream("stream", "--drain")

    status = shell.json("status")
    assert status["problem"] is None
    assert status["watermark"] == status["slot"]["confirmed_lsn"] == shell.confirmed()
    assert [table["table"] for table in status["tables"]] == ["public.orders", "public.visits"]
    assert "public.orders" in shell.pgstream("status")

    copied_at = status["tables"][0]["copied_at"]
    assert "public.orders" in shell.pgstream("snapshot", "public.orders")
    after = shell.json("status")["tables"]
    assert Lsn.parse(after[0]["copied_at"]) > Lsn.parse(copied_at)
    assert after[1] == status["tables"][1]

    assert "dropped" in shell.pgstream("teardown", "--yes")
    assert shell.confirmed() is None
    assert psql(shell.dsn, "select 1 from pg_publication") == []


@pytest.mark.long
def test_reconcile_prints_identical_or_the_keys_that_differ(shell, spark):
    shell.pgstream("setup")
    with shell.streaming():
        psql(shell.dsn, "delete from visits where who = 'b'")
        same = shell.json("reconcile", "--timeout", "200")
        assert same["identical"] is True
        assert {t["table"]: t["source_rows"] for t in same["tables"]} == {
            "public.orders": 100,
            "public.visits": 2,
        }
    changed = {"op": "update", "key": ["7"], "after": {"id": "7", "note": "in the log alone"}}
    plant(Lake(str(shell.folder / "lake")), "orders", changed)
    with shell.streaming():
        [table] = shell.json("reconcile", "--timeout", "200", "public.orders", code=1)["tables"]
        assert table["differing"] == [[["7"], ["note"]]]
        printed = shell.pgstream("reconcile", "--timeout", "200", code=1)
        assert "public.orders: differs: ('7') in note" in printed
        assert "in the log alone" not in printed


def test_reconcile_without_a_stream_may_be_tried_later(shell, spark):
    shell.pgstream("setup")
    shell.pgstream("reconcile", "--timeout", "0.5", code=4)
    assert "is 'pgstream stream' running?" in shell.errors


def test_table_that_is_not_published_is_named(shell, spark):
    shell.pgstream("setup")
    shell.pgstream("snapshot", "public.nothing", code=3)
    assert "'public.nothing' is not in publication" in shell.errors


def test_stream_before_setup_names_the_command_to_run(shell):
    shell.pgstream("stream", code=3)
    assert "run 'pgstream setup'" in shell.errors
    assert "Traceback" not in shell.errors


def test_unreachable_server_may_be_tried_later(shell):
    shell.set(DSN="host=127.0.0.1 port=1 dbname=shop password=hunter2")
    shell.pgstream("setup", code=4)
    assert "cannot reach 127.0.0.1:1/shop" in shell.errors
    assert "hunter2" not in shell.errors


def test_everything_wrong_with_file_and_environment_is_reported_at_once(shell, monkeypatch):
    (shell.folder / "pgstream.yaml").write_text("pipeline: Shop!\nsources: {}\n")
    (shell.folder / ".env").write_text("PGSTREAM_JVM_HEAP=lots\n")
    monkeypatch.setenv("PGSTREAM_JVM_HEAP", "lots")
    shell.pgstream("status", code=2)
    for fact in ("pipeline:", "sources: unknown key", "PGSTREAM_DSN", "PGSTREAM_LAKE", "'lots'"):
        assert fact in shell.errors


def test_teardown_drops_nothing_without_a_terminal(shell, spark):
    shell.pgstream("setup")
    shell.pgstream("teardown", code=2)
    assert "give --yes" in shell.errors
    assert shell.confirmed() is not None


def test_missing_slot_is_a_problem_of_status_and_an_error_of_stream(shell, spark):
    """P101: `resnapshot` copies the tables again and makes the slot."""
    shell.pgstream("setup")
    psql(shell.dsn, f"select pg_drop_replication_slot('{shell.slot}')")
    assert shell.json("status", code=1)["problem"]["error"] == "SlotMissing"
    shell.pgstream("stream", "--drain", code=3)
    assert "run 'pgstream resnapshot'" in shell.errors
    assert "public.visits" in shell.pgstream("resnapshot")
    shell.pgstream("stream", "--drain")
