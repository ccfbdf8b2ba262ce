"""`pgstream tables as-of`, of tables without typed tables and histories."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tests.support.plugins.cluster import psql

pytestmark = pytest.mark.one_major("newest")


@pytest.mark.long
def test_a_table_is_printed_as_it_was(shell, spark):
    shell.pgstream("setup")
    copied_at = shell.json("status")["tables"][0]["copied_at"]
    psql(shell.dsn, "delete from orders where id > 2", "update orders set note = '' where id = 1")
    psql(shell.dsn, "delete from visits where who = 'a'")
    shell.pgstream("stream", "--drain")
    after = shell.json("status")["watermark"]

    before = shell.json("tables", "as-of", "orders", copied_at, "--limit", "0")
    assert before["position"] == copied_at
    assert before["is_limited"] is False
    assert sorted(row["id"] for row in before["rows"]) == list(range(1, 101))
    now = shell.pgstream("tables", "as-of", "orders", after, "--csv").splitlines()
    assert (now[0], sorted(now[1:])) == ('"id","note","_rescued"', ['1,"",', '2,"note 2",'])
    assert f"orders at {after}: 2 rows" in shell.errors
    in_time = datetime.now(UTC).isoformat()
    text = shell.pgstream("tables", "as-of", "visits", in_time, "--limit", "1")
    assert "who" in text
    assert json.loads(shell.pgstream("tables", "as-of", "visits", in_time, "--json"))["rows"] == [
        {"who": "b", "_rescued": None}
    ]

    shell.pgstream("tables", "as-of", "orders", "yesterday", code=2)
    assert "neither a position" in shell.errors
    shell.pgstream("tables", "as-of", "orders", "0/1", code=3)
    assert copied_at in shell.errors
