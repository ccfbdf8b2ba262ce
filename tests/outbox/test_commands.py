"""`pgstream outbox`: what it prints, and how it exits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pgstream_dagster.cli import run
from pgstream_dagster.outbox.install import VERSION
from tests.support.plugins.cluster import psql


@pytest.fixture
def pgstream(dsn, tmp_path, monkeypatch, capsys):
    """Runs the command line on a database of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGSTREAM_DSN", dsn)
    monkeypatch.setenv("PGSTREAM_LAKE", str(tmp_path / "lake"))
    monkeypatch.delenv("PGSTREAM_CONFIG", raising=False)
    (tmp_path / "pgstream.yaml").write_text("pipeline: shop\noutbox: {days_ahead: 2}\n")

    def call(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = run.run(("outbox", *arguments))
        printed = capsys.readouterr()
        assert ended == code, printed.err
        return printed.out or printed.err

    return call


def as_json(text: str) -> Any:
    return json.loads(text)


def test_outbox_from_installation_to_removal(pgstream, dsn) -> None:
    assert "pgstream outbox install" in pgstream("check", code=1)
    assert "no outbox" in pgstream("maintain", code=3)
    assert f"the outbox has version {VERSION}" in pgstream("install")
    assert as_json(pgstream("install", "--json"))["former_version"] == VERSION
    assert pgstream("check").strip() == "no problem"
    assert as_json(pgstream("check", "--json")) == []
    assert pgstream("maintain").strip() == "nothing to do"
    psql(
        dsn,
        "create table t (id int)",
        "insert into pgstream.streams (id) values (1)",
        "select pgstream.set_subscriptions(1, array[pgstream.subscription("
        "key => 'k', operation => 'INSERT', table_name => 't', column_names => '{id}')])",
    )
    [(trigger,)] = psql(dsn, "select tgname from pg_trigger where tgname ~ '^pgstream_'")
    psql(dsn, f"drop trigger {trigger} on t")
    shown = pgstream("check", code=1)
    assert "error: the trigger for INSERT of public.t is missing" in shown
    assert "run select pgstream.repair()" in shown
    assert f"version {VERSION}, which was {VERSION} before" in pgstream("upgrade")
    assert pgstream("check").strip() == "no problem"
    psql(dsn, "drop table pgstream.events_default")
    assert "create table pgstream.events_default" in pgstream("check", code=1)
    assert "give --yes" in pgstream("uninstall", code=2)
    assert pgstream("uninstall", "--yes").strip() == "the outbox is removed"
    assert as_json(pgstream("uninstall", "--yes", "--json")) == {"removed": False}


def test_maintenance_prints_what_it_did(pgstream, dsn) -> None:
    pgstream("install")
    psql(
        dsn,
        "insert into pgstream.outbox_sinks (pipeline, sink) values ('other', 'away')",
        "insert into pgstream.events (stream_id, payload, created_at)"
        " values (1, '1', '2024-03-01 10:00+00')",
    )
    shown = pgstream("maintain", code=1)
    assert "created: 2024-03-01" in shown
    assert "moved rows: 1" in shown
    assert "alert: day 2024-03-01 is older than 7 days and stays: sink 'away'" in shown
    done = as_json(pgstream("maintain", "--force", "--json", code=1))
    assert done["dropped"] == ["2024-03-01"]


def test_import_prints_what_it_refuses(pgstream, dsn, tmp_path) -> None:
    pgstream("install")
    psql(dsn, "create table t (id int)")
    row = {"stream_id": 1, "operation": "INSERT", "schema_name": "public", "column_names": ["id"]}
    rows = [
        row | {"id": f"018cc251-f400-7000-8000-00000000000{n}", "key": name, "table_name": name}
        for n, name in enumerate(("t", "missing"))
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    shown = pgstream("subscriptions", "import", "rows.json", code=1)
    assert "1 imported, 0 were there, 1 refused" in shown
    assert "refused: 'missing' (INSERT of public.missing)" in shown
    pgstream("subscriptions", "import", "rows.json", "--dsn-variable", "X", code=2)
    pgstream("subscriptions", "import", code=3)


def test_owner_has_a_connection_string_of_its_own(pgstream, dsn, tmp_path, monkeypatch) -> None:
    (tmp_path / "pgstream.yaml").write_text("pipeline: shop\noutbox: {dsn_variable: OWNER_DSN}\n")
    assert "OWNER_DSN is not set" in pgstream("install", code=2)
    monkeypatch.setenv("OWNER_DSN", dsn)
    monkeypatch.setenv("PGSTREAM_DSN", "host=nowhere.invalid")
    pgstream("install")
