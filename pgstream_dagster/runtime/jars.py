"""
Groups of jars, downloaded once into the user's cache and checked against `jars.lock`.

The lock has the repository path and the sha256 of every jar; no dependencies are resolved here.
`.ci/lock_jars.py` (`make lock`) regenerates it. Jars come from Maven's central repository;
PGSTREAM_MAVEN_URL names a mirror, PGSTREAM_CACHE another cache folder.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pooch
import requests
from jgo.constants import MAVEN_CENTRAL_URL

from pgstream_dagster.errors import JarsMissing

DOWNLOADS_AT_ONCE: Final = 4
"""Enough to hide the latency of small files; public repositories ask clients not to use more."""

TIMEOUT_SECONDS: Final = 60
"""A download that receives no byte for this long is retried (three times)."""


def cache_folder() -> Path:
    """Where downloads are kept: PGSTREAM_CACHE, else the platform's cache folder of the user."""
    if folder := os.environ.get("PGSTREAM_CACHE"):
        return Path(folder).expanduser().absolute()
    return Path(pooch.os_cache("pgstream-dagster"))


def fetch(group: str) -> list[Path]:
    """
    The jars of one group of the lock, each with the sha256 of the lock.

    Downloads what the cache lacks; several processes may do so at once.

    Raises:
        JarsMissing: a jar cannot be fetched, or has another checksum.
    """
    jars = locked()[group]
    # Pooch logs every download at INFO; our callers report what they wait for.
    pooch.get_logger().setLevel("WARNING")
    store = pooch.create(
        path=cache_folder() / "jars",
        base_url=os.environ.get("PGSTREAM_MAVEN_URL", MAVEN_CENTRAL_URL).rstrip("/") + "/",
        registry={path: f"sha256:{sha256}" for path, sha256 in jars.items()},
        retry_if_failed=3,
    )
    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as threads:
        return list(threads.map(partial(_fetch, store), jars))


@cache
def locked() -> dict[str, dict[str, str]]:
    """
    The lock: group -> repository path -> sha256.

    Shape:
        `[group]` begins a group, `sha256  repository/path.jar` is a jar, `#` begins a comment.
    """
    groups: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    lock = resources.files("pgstream_dagster.runtime").joinpath("jars.lock")
    for line in lock.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = groups.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            sha256, path = line.split()
            current[path] = sha256
    return groups


def main() -> None:
    """Fetch the groups named as arguments, or all; for installation and offline machines."""
    for group in sys.argv[1:] or locked():
        jars = fetch(group)
        size = sum(jar.stat().st_size for jar in jars)
        sys.stdout.write(f"{group}: {len(jars)} jar(s), {size / 1e6:.0f} MB\n")


def _fetch(store: pooch.Pooch, path: str) -> Path:
    try:
        downloader: Any = pooch.HTTPDownloader(timeout=TIMEOUT_SECONDS)
        return Path(store.fetch(path, downloader=downloader))
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else "with an error"
        raise JarsMissing(path, f"the repository answers {status}") from error
    except (requests.RequestException, OSError) as error:
        raise JarsMissing(path, f"no connection ({type(error).__name__})") from error
    except ValueError as error:
        raise JarsMissing(path, "its sha256 is not the one of jars.lock") from error


if __name__ == "__main__":
    main()
