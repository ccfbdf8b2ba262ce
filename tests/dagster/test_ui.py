"""
Dagster's UI in a browser, on what `pgstream dev` starts: what a person sees and clicks.

PGSTREAM_UI_SHOTS names a folder for pictures. States that the UI only draws (a run's, a tick's) are
asked where it asks them, by GraphQL. One test, since all of it is one installation: tests of a
module may be shared out among workers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import FloatRect, Page, ViewportSize, expect

from pgstream_dagster.embedded.processes import ended, free_ports
from tests.support.harness import browser
from tests.support.plugins.wait import until

SECONDS = 600  # a stream runs after a minute; on a busy machine after six
LOCATION = "pgstream_dagster.definitions"
USUAL: ViewportSize = {"width": 1400, "height": 1150}
LARGE: ViewportSize = {"width": 2200, "height": 2300}
GRAPH: FloatRect = {"x": 545, "y": 110, "width": 1570, "height": 2185}  # without what frames it
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
GROUPS = ("source", "landing", "search", "sinks")
EXPANDED = "%2C".join(f"global%40global%3A{group}" for group in GROUPS)

RUNS = "query($job: String) { runsOrError(filter: {pipelineName: $job}) {\
 ... on Runs { results { runId status } } } }"
TICKS = "query($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {\
 ... on Sensor { sensorState { ticks(limit: 1) { timestamp skipReason } } } } }"
LOADED = "{ locationStatusesOrError { ... on WorkspaceLocationStatusEntries {\
 entries { loadStatus updateTimestamp } } } }"


class Dev:
    """`pgstream dev` in a process of its own, and what its servers say."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output_file = folder / "dev", folder / "output"
        [port] = free_ports(range(3001, 3999), 1)
        self.url = f"http://127.0.0.1:{port}"
        command = ["-m", "pgstream_dagster.cli", "dev", "--port", str(port)]
        with self.output_file.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--folder", str(self.folder)],
                cwd=folder,
                stdout=output,
                stderr=output,
            )
        self._http = requests.Session()
        self._http.trust_env = False  # a proxy of the machine does not lead to 127.0.0.1

    @property
    def output(self) -> str:
        return self.output_file.read_text()

    def wait_for(self, line: str) -> None:
        until(lambda: line in self.output or self._has_ended(), seconds=SECONDS, every=0.5)

    def _has_ended(self) -> bool:
        assert self.process.poll() is None, self.output
        return False

    def ask(self, query: str, **variables: Any) -> Any:
        body = {"query": query, "variables": variables}
        answer = self._http.post(f"{self.url}/graphql", json=body, timeout=60).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def runs(self, job: str) -> list[tuple[str, str]]:
        """(id, status), newest first."""
        runs = self.ask(RUNS, job=job)["runsOrError"]["results"]
        return [(run["runId"], run["status"]) for run in runs]

    def skip_reason(self, sensor: str, *, after: float = 0.0) -> str:
        """
        What the newest tick said; empty when it launched something, or is not over.

        And when it is not from `after` a time (seconds since 1970).
        """
        selector = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__"}
        answer = self.ask(TICKS, sensor={**selector, "sensorName": sensor})
        [tick] = answer["sensorOrError"]["sensorState"]["ticks"]
        return tick["skipReason"] or "" if tick["timestamp"] > after else ""

    def loaded_at(self) -> float:
        """When the code location was loaded; 0 while it is not."""
        [location] = self.ask(LOADED)["locationStatusesOrError"]["entries"]
        return location["updateTimestamp"] if location["loadStatus"] == "LOADED" else 0.0

    def behind(self, alias: str) -> set[str]:
        """The indices that readers of an alias see."""
        address = re.search(r"OpenSearch +(http\S+)", self.output)
        assert address, self.output
        answer = self._http.get(f"{address[1]}/_alias/{alias}", timeout=60)
        return set(answer.json()) if answer.ok else set()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(SECONDS)


@pytest.fixture
def chromium() -> str:
    return browser.chromium()


@pytest.fixture
def dev(chromium: str, tmp_path: Path) -> Iterator[Dev]:
    started = Dev(tmp_path)
    try:
        for job in ("stream", "index"):
            started.wait_for(f"job '{job}' runs")
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()


@pytest.fixture
def page(chromium: str, dev: Dev, shots: Path) -> Iterator[Page]:
    with browser.page_of(dev.url, chromium, USUAL, shots) as page:
        yield page


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    return browser.shots_folder(tmp_path / "shots")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.first
@pytest.mark.timeout(1800)
def test_a_person_sees_the_pipeline_and_steers_it(dev: Dev, page: Page, shots: Path) -> None:
    reindex_from_its_page_moves_the_aliases(page, dev, shots)
    page_of_the_log_has_plots(page, shots)
    graph_shows_log_copies_indices_and_sinks(page, shots)
    commands_in_its_folder_are_about_its_pipeline(dev)
    reload_of_the_location_leaves_the_stream_running(page, dev)
    terminated_stream_stays_down_until_it_is_launched(page, dev, shots)
    end_leaves_the_folder_and_no_process(dev)


def launch(page: Page, job: str) -> None:
    """From the job's page, as a person does; the button says what the job makes."""
    page.goto(f"/locations/{LOCATION}/jobs/{job}")
    page.get_by_role("button", name="Materialize").first.click()


def graph_shows_log_copies_indices_and_sinks(page: Page, shots: Path) -> None:
    page.set_viewport_size(LARGE)  # else the nodes show their names alone
    page.goto(f"/asset-groups?expanded={EXPANDED}")
    nodes = page.locator("svg foreignObject")
    landing = ("source", "snapshot", "change_log", "daily_changes")
    for asset in (*landing, "planes", "distributions"):
        expect(nodes.filter(has_text=f"{asset}Latest event")).to_be_visible()
    expect(nodes.filter(has_text="snapshotLatest event")).to_contain_text("4 partitions")
    for follower in ("planes", "distributions", "events", "masked", "partner"):
        expect(nodes.filter(has_text=f"{follower}Latest event")).to_contain_text("Materialized")
    page.screenshot(path=shots / "graph.png", clip=GRAPH)
    page.set_viewport_size(USUAL)


def commands_in_its_folder_are_about_its_pipeline(dev: Dev) -> None:
    command = [sys.executable, "-m", "pgstream_dagster.cli", "sink", "status", "--json"]
    shown = subprocess.run(command, cwd=dev.folder, capture_output=True, check=True).stdout
    assert {sink["sink"] for sink in json.loads(shown)} == {"events", "masked", "partner.receiver"}


def page_of_the_log_has_plots(page: Page, shots: Path) -> None:
    page.goto("/assets/change_log?view=overview")
    page.get_by_text("Plots", exact=True).click()
    for series in ("rows", "lag_bytes", "lag_seconds", "watermark_lsn"):
        expect(page.get_by_text(series, exact=True).first).to_be_visible()
    expect(page.locator("canvas").nth(5)).to_be_attached()
    page.screenshot(path=shots / "change_log.png")


def reindex_from_its_page_moves_the_aliases(page: Page, dev: Dev, shots: Path) -> None:
    aliases = ("planes", "distributions")
    until(lambda: all(map(dev.behind, aliases)), seconds=SECONDS, every=0.5)
    before = {alias: dev.behind(alias) for alias in aliases}
    launch(page, "reindex")
    until(lambda: dev.runs("reindex"), seconds=SECONDS, every=0.5)
    [(run, _)] = dev.runs("reindex")
    page.goto("about:blank")  # a page of a run is drawn all the time
    until(lambda: dev.runs("reindex")[0][1] in ENDED, seconds=SECONDS, every=0.5)
    page.goto(f"/runs/{run}")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    assert dev.runs("reindex") == [(run, "SUCCESS")]
    for alias in aliases:
        assert len(dev.behind(alias)) == 1
        assert not dev.behind(alias) & before[alias]
    for drawn in ("RUN_SUCCESS", "Succeeded (2)"):
        expect(page.get_by_text(drawn, exact=True)).to_be_visible()
    page.screenshot(path=shots / "reindex.png")


def reload_of_the_location_leaves_the_stream_running(page: Page, dev: Dev) -> None:
    [(run, _)] = dev.runs("stream")
    before = dev.loaded_at()
    page.goto("/deployment/locations")
    page.get_by_text("Reload", exact=True).click()
    until(lambda: dev.loaded_at() > before, seconds=SECONDS, every=0.5)
    is_started = f"run {run[:8]} is started, streaming"
    until(
        lambda: dev.skip_reason("keep_stream", after=dev.loaded_at()).startswith(is_started),
        seconds=SECONDS,
        every=0.5,
    )
    assert dev.runs("stream") == [(run, "STARTED")]


def terminated_stream_stays_down_until_it_is_launched(page: Page, dev: Dev, shots: Path) -> None:
    [(first, status)] = dev.runs("stream")
    assert status == "STARTED"
    page.goto(f"/runs/{first}")
    page.get_by_role("button", name="Terminate").click()
    page.get_by_role("dialog").get_by_role("button", name="Terminate").click()
    until(lambda: dev.runs("stream") == [(first, "CANCELED")], seconds=SECONDS, every=0.5)
    page.goto(f"/runs/{first}")
    expect(page.get_by_text("Canceled", exact=True).first).to_be_visible()
    page.screenshot(path=shots / "terminated.png")

    terminated = f"run {first[:8]} was terminated; launch 'stream' to continue"
    until(lambda: dev.skip_reason("keep_stream") == terminated, seconds=SECONDS, every=0.5)
    assert dev.runs("stream") == [(first, "CANCELED")]

    page.goto(f"/locations/{LOCATION}/jobs/stream/playground")
    page.get_by_role("button", name="Launch Run").first.click()
    until(lambda: dev.runs("stream")[0][1] == "STARTED", seconds=SECONDS, every=0.5)
    second = dev.runs("stream")[0][0]
    assert len(dev.runs("stream")) == 2 and second != first
    is_started = f"run {second[:8]} is started, streaming"
    until(lambda: dev.skip_reason("keep_stream").startswith(is_started), seconds=SECONDS, every=0.5)


def end_leaves_the_folder_and_no_process(dev: Dev) -> None:
    processes = _started_by(dev)
    assert len(processes) > 5
    assert dev.stop() == 0, dev.output
    until(lambda: all(map(ended, processes)), seconds=SECONDS)
    assert (dev.folder / "lake").is_dir()


def _started_by(dev: Dev) -> list[int]:
    """Every process that is told of the folder: by its environment or its arguments."""
    pids = []
    for process in Path("/proc").iterdir():
        try:
            environ = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue  # not a process, or gone
        if os.fsencode(dev.folder) in environ:
            pids.append(int(process.name))
    return pids
