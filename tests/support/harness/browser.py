"""Chromium of the machine, without network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from tests.support.plugins.cluster import REQUIRED

PAGE_MS = 120_000

INSTALL = "apt-get update && apt-get install --yes --no-install-recommends chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
]


def chromium() -> str:
    """Its path; without it the test is skipped, or fails where services are required."""
    path = shutil.which("chromium")
    if path is None:
        reason = f"no chromium: {INSTALL}"
        pytest.fail(reason) if REQUIRED else pytest.skip(reason)
    return path


@contextmanager
def page_of(url: str, path: str, size: ViewportSize, shots: Path) -> Generator[Page]:
    """A page of a browser for one site; a picture shows what it looked like last."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport=size, base_url=url)
        page.set_default_timeout(PAGE_MS)
        expect.set_options(timeout=PAGE_MS)
        yield page
        page.screenshot(path=shots / "last.png")
        browser.close()


def shots_folder(otherwise: Path) -> Path:
    """Where pictures go: PGSTREAM_UI_SHOTS, or this folder."""
    named = os.environ.get("PGSTREAM_UI_SHOTS")
    folder = Path(named) if named else otherwise
    folder.mkdir(parents=True, exist_ok=True)
    return folder
