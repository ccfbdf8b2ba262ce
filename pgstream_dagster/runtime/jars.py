"""
Jars by name of their group, fetched once into the user's cache and checked against `jars.lock`.

The lock is the whole truth: repository path and sha256 of every jar, nothing is resolved here.
`.ci/lock_jars.py` (`make lock`) writes it again. Jars come from Maven's central repository;
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
"""Enough to hide the latency of small files; more is what public repositories ask not to do."""

TIMEOUT_SECONDS: Final = 60
"""Without a byte for this long, a download is tried again (three times)."""


def cache_folder() -> Path:
    """Where downloads are kept: PGSTREAM_CACHE, else the platform's cache folder of the user."""
    named = os.environ.get("PGSTREAM_CACHE")
    return (
        Path(named).expanduser().absolute() if named else Path(pooch.os_cache("pgstream-dagster"))
    )


def fetch(group: str) -> list[Path]:
    """
    The jars of one group of the lock, all present and with the sha256 that the lock says.

    Downloads what the cache lacks; several processes may do so at once.

    Raises:
        JarsMissing: a jar cannot be fetched, or has another checksum.
    """
    jars = locked()[group]
    pooch.get_logger().setLevel(
        "WARNING"
    )  # it tells every download; callers say what they wait for
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
        `[group]` opens a group, `sha256  repository/path.jar` is one jar, `#` opens a comment.
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
    """Fetch the groups named as arguments, or all; for set-up and for machines that go offline."""
    for group in sys.argv[1:] or locked():
        jars = fetch(group)
        size = sum(jar.stat().st_size for jar in jars)
        sys.stdout.write(f"{group}: {len(jars)} jar(s), {size / 1e6:.0f} MB\n")


def _fetch(store: pooch.Pooch, path: str) -> Path:
    try:
        downloader: Any = pooch.HTTPDownloader(timeout=TIMEOUT_SECONDS)
        return Path(store.fetch(path, downloader=downloader))
    except requests.HTTPError as error:
        answer = error.response.status_code if error.response is not None else "with an error"
        raise JarsMissing(path, f"the repository answers {answer}") from error
    except (requests.RequestException, OSError) as error:
        raise JarsMissing(path, f"no connection ({type(error).__name__})") from error
    except ValueError as error:
        raise JarsMissing(path, "its sha256 is not the one of jars.lock") from error


if __name__ == "__main__":
    main()
