"""Every SQL statement of the guide is run, in its order."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import psycopg

from pgstream_dagster.outbox.install import install
from pgstream_dagster.source.connect import connect
from tests.support.plugins.cluster import psql

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "outbox.md"


def test_statements_of_the_guide_do_what_it_says(dsn) -> None:
    with closing(connect(dsn)) as session:
        install(session)
    text = GUIDE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 9
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for block in blocks:
                for statement in re.split(r";\n", block):
                    if statement.strip():
                        connection.execute(statement.encode())
        payloads = [row for (row,) in psql(dsn, "select payload from pgstream.events")]
        signup = next(p for p in payloads if p.get("tg_name") == "user-signup")
        assert signup["new"].keys() == {"id", "email", "created_at"}
        order = next(p for p in payloads if p.get("tg_name") == "order-notification")
        assert (order["group_id"], order["source"]) == ("123", {"app": "shop"})
        changed = next(p for p in payloads if p.get("tg_name") == "order-changed")
        assert changed["ctx"]["tenant"] == "t9"
        assert {"job": "send-newsletter"} in payloads
        rows = psql(dsn, "select key, column_names from pgstream.subscriptions order by key")
        assert rows == [("user-gone", None), ("user-signup", ["id", "address", "created_at"])]
    finally:
        psql(dsn, "drop owned by shop_app", "drop role shop_app")
