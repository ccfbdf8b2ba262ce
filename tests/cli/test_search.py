"""Commands on search indices, against a real search engine: what they print, how they exit."""

from __future__ import annotations

import signal

import pytest

from tests.support.plugins.cluster import psql
from tests.support.plugins.search import ask
from tests.support.plugins.wait import until

pytestmark = [pytest.mark.one_major("newest"), pytest.mark.slow]

SECONDS = 200  # a JVM starts in 3 s, and in a minute on a busy machine

VARIABLES = ("URL", "USER", "PASSWORD", "API_KEY", "CA")


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}orders"


@pytest.fixture
def search_pipelines(shell, search_node, alias, monkeypatch):
    """The site with an index, and credentials that its server does not ask for."""
    for name in VARIABLES:
        monkeypatch.setenv(f"PGSTREAM_SEARCH_{name}", "")  # as `shell` does with the others
        monkeypatch.delenv(f"PGSTREAM_SEARCH_{name}")
    with (shell.folder / "pgstream.yaml").open("a") as file:
        file.write(f"search: {{{alias}: {{table: orders}}}}\n")
    shell.set(SEARCH_URL=search_node.url, SEARCH_USER="indexer", SEARCH_PASSWORD="hunter2")
    shell.secrets.append("hunter2")
    return shell


@pytest.mark.long
@pytest.mark.timeout(900)
def test_index_from_its_first_build_to_the_way_back(search_pipelines, spark, alias, monkeypatch):
    shell, first, second = search_pipelines, f"{alias}-000001", f"{alias}-000002"
    shell.pgstream("setup")
    shell.pgstream("stream", "--drain")
    assert shell.json("index", "status") == [
        {"alias": alias, "table": "public.orders", "generations": [], "problem": None}
    ]
    assert "none yet" in shell.pgstream("index", "status")

    assert '{"type": "long"}' in shell.pgstream("reindex", alias, "--dry-run")
    assert shell.json("index", "status")[0]["generations"] == []

    assert f"{alias} is on {first}: 100 documents" in shell.pgstream("reindex", alias)
    [live] = shell.json("index", "status")[0]["generations"]
    watermark = shell.json("status")["watermark"]
    assert live == {
        "index": first,
        "state": "live",
        "delivered": watermark,
        "lag_bytes": 0,
        "documents": 100,
        "refused": 0,
        "outdated": None,
    }

    psql(shell.dsn, "delete from orders where id = 1")
    shell.pgstream("stream", "--drain")
    printed = shell.pgstream("reindex", alias)
    assert f"is on {second}, which was on {first}: 99 documents" in printed
    generations = shell.json("index", "status")[0]["generations"]
    states = {generation["index"]: generation["state"] for generation in generations}
    assert states == {first: "kept", second: "live"}
    assert first in shell.pgstream("index", "status")

    assert shell.pgstream("rollback", alias).startswith(f"{alias} is on {first} again, up to ")
    assert shell.pgstream("redrive", alias) == f"{first}: 0 sent again, 0 refused again\n"
    shell.pgstream("reindex", alias, "--keep", "0")
    assert len(shell.json("index", "status")[0]["generations"]) == 1
    shell.pgstream("rollback", alias, code=3)
    assert "no former index was kept" in shell.errors

    for command in ("reindex", "rollback", "redrive"):
        shell.pgstream(command, "nothing", code=3)
        assert f"no index 'nothing' under 'search'; it has {alias}" in shell.errors
        assert "Traceback" not in shell.errors

    shell.set(SEARCH_URL="http://127.0.0.1:1")
    shell.pgstream("index", "status", code=4)
    assert "no answer from the search cluster at http://127.0.0.1:1" in shell.errors


def test_commands_without_an_address_name_the_variable(search_pipelines, alias):
    search_pipelines.set(SEARCH_URL="")
    commands = [["index", "run"], ["index", "status"], ["reindex", alias], ["rollback", alias]]
    for command in [*commands, ["reindex", alias, "--dry-run"], ["redrive", alias]]:
        search_pipelines.pgstream(*command, code=2)
        assert "PGSTREAM_SEARCH_URL is not set" in search_pipelines.errors
        assert "Traceback" not in search_pipelines.errors


@pytest.mark.long
@pytest.mark.timeout(600)
def test_stopped_indexer_has_let_go_of_an_index_that_is_current(
    search_pipelines, spark, search_node, alias
):
    shell = search_pipelines
    shell.pgstream("setup")
    shell.pgstream("stream", "--drain")
    indexer = shell.start("index", "run")
    path = f"/_cat/aliases/{alias}?format=json"
    until(lambda: ask(search_node, "GET", path), seconds=SECONDS)
    psql(shell.dsn, "insert into orders values (101, 'late')")
    shell.pgstream("stream", "--drain")
    watermark = shell.json("status")["watermark"]

    def delivered() -> str:
        return shell.json("index", "status")[0]["generations"][0]["delivered"]

    until(lambda: delivered() == watermark, seconds=SECONDS, every=1.0)
    indexer.send_signal(signal.SIGTERM)
    printed, errors = indexer.communicate(timeout=SECONDS)

    assert indexer.returncode == 0, errors
    assert f"{alias}-000001 is up to {watermark}" in printed
    assert "hunter2" not in printed + errors
    [live] = shell.json("index", "status")[0]["generations"]
    assert (live["documents"], live["lag_bytes"]) == (101, 0)
    assert "0 sent again" in shell.pgstream("redrive", alias)  # no process holds the index
