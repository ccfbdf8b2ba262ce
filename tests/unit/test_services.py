"""Where the servers of tests come from, and what happens when they come from nowhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from pgstream_dagster.errors import JarsMissing
from tests.support.plugins import cluster, search


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the registry nor Docker answers."""

    def refuse(_which: object) -> NoReturn:
        raise JarsMissing("some.jar", "no connection")

    monkeypatch.setattr(cluster, "_embedded", refuse)
    monkeypatch.setattr(search, "_embedded", refuse)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")


@pytest.mark.usefixtures("bare_machine")
def test_test_is_skipped_with_the_reasons_when_no_server_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "REQUIRED", False)
    with pytest.raises(pytest.skip.Exception, match=r"no connection.*Docker does not answer"):
        cluster._started(15)
    with pytest.raises(pytest.skip.Exception, match=r"no connection.*Docker does not answer"):
        search._started("opensearch-3")


@pytest.mark.usefixtures("bare_machine")
def test_test_fails_where_servers_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REQUIRED", True)
    with pytest.raises(pytest.fail.Exception, match=r"no connection.*Docker does not answer"):
        cluster._started(15)


def test_failed_test_shows_what_its_servers_said_and_no_parameter_of_their_name() -> None:
    funcargs = {"postgres": SimpleNamespace(log=lambda: "ready"), "metastore": "thrift://h:1"}
    item: Any = SimpleNamespace(funcargs=funcargs)
    report = pytest.TestReport("test", ("file", 1, "test"), {}, "failed", "", "call")
    cluster.add_logs(report, item, ("postgres", "own_postgres", "metastore"))
    assert report.sections == [("log of postgres", "ready")]


def test_a_test_runs_on_one_major_whatever_else_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "MAJORS", [15, 18])
    monkeypatch.setattr(cluster, "ALL", False)

    def runs_on(name: str, *markers: str) -> list[int]:
        items: Any = {
            major: SimpleNamespace(
                nodeid=f"{name}[pg{major}]",
                callspec=SimpleNamespace(params={"shared_major": major}),
                get_closest_marker=lambda marker: marker in markers or None,
            )
            for major in (15, 18)
        }
        return [major for major, item in items.items() if cluster._is_chosen(item)]

    majors = [runs_on(f"test_{number}") for number in range(20)]
    assert set(map(tuple, majors)) == {(15,), (18,)}
    assert [runs_on(f"test_{number}") for number in range(20)] == majors
    assert runs_on("test", "every_major") == [15, 18]
