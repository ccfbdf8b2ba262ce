"""Jars come from the lock, from any repository, and never with other bytes."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pgstream_dagster.errors import JarsMissing
from pgstream_dagster.runtime import jars

GROUP = {"org/x/1/x-1.jar": hashlib.sha256(b"x").hexdigest()}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: the test says what matters."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository over HTTP with an empty cache before it, and a lock of one jar."""
    folder = tmp_path / "repository"
    (folder / "org/x/1").mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("PGSTREAM_MAVEN_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("PGSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(jars, "locked", lambda: {"x": GROUP})
    monkeypatch.setattr("pooch.core.time.sleep", lambda _seconds: None)  # between its retries
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def test_jar_is_fetched_once_and_then_found_without_the_repository(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "org/x/1/x-1.jar").write_bytes(b"x")
    [fetched] = jars.fetch("x")
    assert fetched == tmp_path / "cache/jars/org/x/1/x-1.jar"
    (repository / "org/x/1/x-1.jar").unlink()
    assert jars.fetch("x") == [fetched]


def test_jar_with_other_bytes_is_refused(repository: Path) -> None:
    (repository / "org/x/1/x-1.jar").write_bytes(b"y")
    with pytest.raises(JarsMissing, match=r"its sha256 is not the one of jars\.lock"):
        jars.fetch("x")


def test_damaged_jar_in_the_cache_is_fetched_again(repository: Path) -> None:
    (repository / "org/x/1/x-1.jar").write_bytes(b"x")
    [fetched] = jars.fetch("x")
    fetched.write_bytes(b"half")
    [again] = jars.fetch("x")
    assert again.read_bytes() == b"x"


def test_jar_the_repository_lacks_is_named(repository: Path) -> None:
    with pytest.raises(JarsMissing, match=r"org/x/1/x-1\.jar.*answers 404.*PGSTREAM_MAVEN_URL"):
        jars.fetch("x")


def test_repository_out_of_reach_is_a_missing_jar(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTREAM_MAVEN_URL", "http://127.0.0.1:1")
    with pytest.raises(JarsMissing, match="no connection"):
        jars.fetch("x")


def test_lock_names_every_jar_by_path_and_sha256() -> None:
    groups = jars.locked()
    engines = {"opensearch-2", "opensearch-3", "elasticsearch-9", "kafka-4", "elasticmq-1"}
    majors = {"postgres-15", "postgres-16", "postgres-17", "postgres-18"}
    assert set(groups) == {"spark"} | majors | engines
    for path, sha256 in (pair for group in groups.values() for pair in group.items()):
        assert re.fullmatch(r"[\w./-]+\.(jar|zip)", path) and re.fullmatch(r"[0-9a-f]{64}", sha256)


def test_delta_jars_are_of_the_version_of_its_python_package() -> None:
    from importlib.metadata import version

    delta = [path for path in jars.locked()["spark"] if path.startswith("io/delta/")]
    assert {path.split("/")[-2] for path in delta} == {version("delta-spark")}
