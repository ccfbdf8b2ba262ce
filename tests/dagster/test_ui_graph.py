"""The asset graph in a browser: what Dagster's webserver shows of a pipeline file alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import ViewportSize, expect

from pgstream_dagster.demo.site import HOST, answers
from pgstream_dagster.embedded.processes import free_ports
from tests.support.harness import browser
from tests.support.plugins.wait import until

SECONDS = 300  # on a busy machine
LARGE: ViewportSize = {"width": 2200, "height": 1800}

FILE = """
pipeline: shop
tables: {}
search:
  orders: {table: public.orders}
sinks:
  events:
    kafka: {bootstrap_servers_from: BROKERS, topic: "shop.{relation}"}
"""

GROUPS = ("source", "landing", "search", "sinks", "tables")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Dagster's webserver of a folder with a pipeline file."""
    (tmp_path / "pgstream.yaml").write_text(FILE)
    (home := tmp_path / "home").mkdir()
    [port] = free_ports(range(3001, 3999), 1)
    address = ["--host", HOST, "--port", str(port)]
    command = ["-m", "dagster_webserver", "-m", "pgstream_dagster.definitions", *address]
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "DAGSTER_HOME": str(home), "PGSTREAM_LAKE": str(tmp_path / "lake")},
        start_new_session=True,
    )
    try:
        until(lambda: answers(port) or has_ended(process), seconds=SECONDS, every=0.5)
        yield f"http://{HOST}:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    return False


def test_graph_shows_everything_that_the_file_names(url: str, tmp_path: Path) -> None:
    expanded = "%2C".join(f"global%40global%3A{group}" for group in GROUPS)
    shots = browser.shots_folder(tmp_path / "shots")
    with browser.page_of(url, browser.chromium(), LARGE, shots) as page:
        page.goto(f"/asset-groups?expanded={expanded}")
        nodes = page.locator("svg foreignObject")
        landing = ("source", "snapshot", "change_log", "daily_changes")
        for asset in (*landing, "orders", "events", "typed_tables"):
            expect(nodes.filter(has_text=asset).first).to_be_visible()
