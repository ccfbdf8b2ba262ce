"""Commands on the rules of modifiers: what they print, how they exit."""

from __future__ import annotations

import pytest

from tests.support.plugins.cluster import psql

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]

RULES = """
modifiers:
  mask:
    transform:
      public.orders: {note: {name: hash, length: 8}}
      public.visits: {who: {name: masking, type: name}}
  slim:
    drop: {public.orders: [extra]}
"""


@pytest.fixture
def site(shell, monkeypatch):
    monkeypatch.setenv("PGSTREAM_MODIFIER_KEY", "")
    monkeypatch.delenv("PGSTREAM_MODIFIER_KEY")
    psql(shell.dsn, "alter table orders add extra text default 'e'")
    with (shell.folder / "pgstream.yaml").open("a") as file:
        file.write(RULES)
    return shell


@pytest.mark.long
def test_rules_from_their_check_to_their_preview(site) -> None:
    site.pgstream("setup")
    site.pgstream("stream", "--drain")

    [finding] = site.json("rules", "check", code=1)
    assert (finding["modifier"], finding["table"]) == ("mask", "public.orders")
    assert "PGSTREAM_MODIFIER_KEY is not set" in finding["problem"]
    assert "openssl rand -hex 32" in site.pgstream("rules", "check", code=1)
    site.pgstream("rules", "preview", "orders", code=2)
    assert "PGSTREAM_MODIFIER_KEY is not set" in site.errors

    site.set(MODIFIER_KEY="k3y-of-the-tests-" * 2)
    site.secrets.append("k3y-of-the-tests-")
    assert site.pgstream("rules", "check").strip() == "the rules fit the tables"

    rows = site.json("rules", "preview", "orders")
    assert len(rows) == 10
    for row in rows:
        assert row["before"]["note"].startswith("note ")
        assert len(row["after"]["note"]) == 8
        assert row["after"]["id"] == row["before"]["id"]
        assert "extra" not in row["after"]
    assert site.json("rules", "preview", "orders") == rows
    shown = site.pgstream("rules", "preview", "public.visits", "--modifier", "mask")
    assert "who" in shown
    assert "**" in shown
    shown = site.pgstream("rules", "preview", "visits", "--modifier", "slim")
    assert shown.strip() == "3 rows, nothing differs"
    site.pgstream("rules", "preview", "visits", "--modifier", "none", code=3)
    assert "it has mask, slim" in site.errors
    site.pgstream("rules", "preview", "nothing", code=3)


def test_rules_that_do_not_fit_are_all_named(site) -> None:
    site.pgstream("setup")
    site.pgstream("stream", "--drain")
    with (site.folder / "pgstream.yaml").open("a") as file:
        file.write(
            "  wrong:\n"
            "    transform:\n"
            "      orders: {id: {name: masking}, nte: {name: masking}}\n"
            "      customers: {name: {name: masking}}\n"
        )
    findings = site.json("rules", "check", code=1)
    of_wrong = [f for f in findings if f["modifier"] == "wrong"]
    assert {(f["table"], f["column"]) for f in of_wrong} == {
        ("public.customers", ""),
        ("public.orders", "id"),
        ("public.orders", "nte"),
    }
    assert any("bigint (oid 20)" in f["problem"] for f in of_wrong)
