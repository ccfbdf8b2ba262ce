"""
An archive of the classes that Spark and Delta load: a JVM that maps it starts with half the CPU.

`python -m pgstream_dagster.changelog.archive_classes` makes it, once for a Java and a set of jars;
every JVM that starts afterwards uses it. Java checks that it was made of this very class path, and
passes it over where it was not. No JVM is started here.

Source:
    https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
    https://bugs.openjdk.org/browse/JDK-8294323 (where an archive is mapped)
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from pgstream_dagster.runtime.jars import cache_folder

SILENT: Final = "-Xlog:cds*=off"
"""Java warns on standard output of every class that has no place in an archive."""

SHARED: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
"""
Map it where it was made for, so that JVMs share its pages. Java's default (JDK 20, and 17 with its
updates) is a random place, so that addresses cannot be guessed; then every pointer in it is written
anew, and each JVM has 160 MB for itself.
"""


def place(java_home: Path, jars: Sequence[Path]) -> Path:
    """Where the archive of a Java, these jars and this Spark is, or would be."""
    release = java_home / "release"
    java = release.read_text(encoding="utf-8") if release.is_file() else ""
    made_of = [str(java_home), java, metadata.version("pyspark"), _spark(), *map(str, jars)]
    name = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    return cache_folder() / "classes" / f"{name}.jsa"


def _spark() -> str:
    """Where Spark's own jars are: paths are part of what Java compares."""
    found = importlib.util.find_spec("pyspark")
    return "" if found is None else str(found.origin)


def using(archive: Path) -> list[str]:
    """Java's options to use it; none where it was not made."""
    return [f"-XX:SharedArchiveFile={archive}", SILENT, *SHARED] if archive.is_file() else []


def making(archive: Path) -> list[str]:
    """Java's options to make it when the JVM ends."""
    return [f"-XX:ArchiveClassesAtExit={archive}", SILENT]
