"""Sinks of installed packages: how they are found, and what happens when their code fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pgstream_dagster.config import parse
from pgstream_dagster.config.sinks import TARGETS
from pgstream_dagster.errors import InvalidPipeline, MissingSetting, SinkPackageFailed, SinkRefused
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.sinks.base import NotNow, Refused, SinkContext, Verdict, deliver_each
from pgstream_dagster.sinks.package import PackageSink, package_sink
from tests.support.events import event, event_id
from tests.support.harness.sink_changes import History, batch, version

ORDERS = version("orders", {"id": "integer", "n": "integer"})

TEAMS = """
from pydantic import BaseModel

class Settings(BaseModel, extra="forbid"):
    channel: str
    size: int = 5

class TeamsSink:
    Settings = Settings
    keeps_cursor = False
    def __init__(self, settings, context):
        self.channel = settings.channel
        self.token = context.secret("TOKEN")
    def open(self): ...
    def deliver(self, batch): return {}
    def close(self): ...
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a package on the path as an installer leaves it: a module, and its metadata."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(package: str, module: str, code: str, **kinds: str) -> None:
        (tmp_path / f"{module}.py").write_text(code)
        metadata = tmp_path / f"{package}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {package}\nVersion: 1.2\n")
        points = "".join(f"{kind} = {module}:{name}\n" for kind, name in kinds.items())
        (metadata / "entry_points.txt").write_text(f"[pgstream.sinks]\n{points}")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put


def sink(text: str):
    return parse(f"pipeline: shop\nsinks: {{mine: {{{text}}}}}\n").sinks["mine"]


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidPipeline) as refused:
        sink(text)
    return refused.value.problems


def test_an_installed_sink_is_configured_by_its_name(install: Install) -> None:
    install("acme-teams", "acme_teams", TEAMS, teams="TeamsSink")
    config = sink("teams: {channel: ops}, tables: [orders]")
    assert (config.target, config.tables) == ("teams", ("orders",))
    assert config.installed is not None
    made = package_sink("shop", "mine", config.installed, {"TOKEN": "t"})
    assert isinstance(made, PackageSink)
    with pytest.raises(MissingSetting, match="TOKEN"):
        package_sink("shop", "mine", config.installed, {})


def test_its_settings_are_checked_with_everything_else(install: Install) -> None:
    install("acme-teams", "acme_teams", TEAMS, teams="TeamsSink")
    assert problems("teams: {size: many, channels: ops}, start: never") == [
        "sinks.mine.start: must be 'copy' or 'now'",
        "sinks.mine.teams.channel: is required",
        "sinks.mine.teams.channels: unknown key; did you mean 'channel'?",
        (
            "sinks.mine.teams.size: Input should be a valid integer, unable to parse string as an"
            " integer"
        ),
    ]
    [problem] = problems("teams: {channel: ops}, stdout: {}")
    assert "it has stdout and teams" in problem


def test_an_unknown_sink_names_those_that_there_are(install: Install) -> None:
    install("acme-teams", "acme_teams", TEAMS, teams="TeamsSink")
    [problem] = problems("mqtt: {}")
    assert f"{', '.join(TARGETS)}, and of installed packages teams" in problem
    [problem] = problems("team: {}")
    assert problem == "sinks.mine.team: unknown key; did you mean 'teams'?"


def test_packages_that_the_file_does_not_name_are_not_imported(install: Install) -> None:
    install("acme-broken", "acme_broken", "raise RuntimeError('imported')", broken="Sink")
    assert sink("stdout: {}").target == "stdout"
    assert "acme_broken" not in sys.modules


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_thing", "cannot be imported: ModuleNotFoundError: No module named"),
        ("other = 1", "cannot be imported: AttributeError"),
        ("Sink = 1", "is no sink"),
        ("class Sink: ...", "is no sink"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(install: Install, code: str, reason: str) -> None:
    install("acme-broken", "acme_broken", code, broken="Sink")
    [problem] = problems("broken: {}")
    assert problem.startswith("sinks.mine.broken: package acme-broken 1.2 ")
    assert reason in problem


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("acme-teams", "acme_teams", TEAMS, teams="TeamsSink")
    install("other-teams", "other_teams", TEAMS, teams="TeamsSink")
    [problem] = problems("teams: {channel: ops}")
    assert "the packages acme-teams 1.2 and other-teams 1.2 both offer" in problem


# --- what a package does wrong ------------------------------------------------------------------


class Answering:
    """A sink that answers what a test says, or raises it."""

    keeps_cursor = False

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def open(self) -> None: ...

    def deliver(self, _: ChangeBatch) -> Mapping[int, Verdict]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]

    def close(self) -> None:
        raise OSError("cannot be closed")


def deliver(answer: object) -> object:
    history = History()
    changes = [history.update(ORDERS, id=key, n="1") for key in ("1", "2", "1")]
    return PackageSink("mine", "acme 1.2", Answering(answer)).deliver(batch(*changes))


BAD = Refused("bad")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "deliver returned NoneType"),
        ([BAD], "deliver returned list"),
        ({3: BAD}, "a verdict on 3, which is no index"),
        ({1: "bad"}, "deliver returned str"),
        ({2: NotNow("x", is_behind=True)}, "no other that failed"),
        ({0: BAD}, "the later ones of its key"),
        ({1: Refused(ValueError("a value of a row"))}, "reason is ValueError"),  # type: ignore[arg-type]
        ({1: NotNow("x", wait_seconds="30")}, "wait_seconds is '30'"),  # type: ignore[arg-type]
        (KeyError("a value of a row"), "KeyError in "),
    ],
)
def test_a_broken_contract_and_an_error_have_a_name(answer: object, reason: str) -> None:
    with pytest.raises(SinkPackageFailed, match=r"package acme 1\.2 failed") as failed:
        deliver(answer)
    assert reason in failed.value.reason
    assert "a value of a row" not in str(failed.value)


@pytest.mark.parametrize("kept", ["", "{}", "elsewhere", 7])
def test_a_cursor_that_no_batch_had_is_a_broken_contract(kept: object) -> None:
    sink = Answering({})
    sink.open = lambda: kept  # type: ignore[assignment,method-assign,return-value]
    with pytest.raises(SinkPackageFailed, match="no cursor of a batch"):
        PackageSink("mine", "acme 1.2", sink).open()


@pytest.mark.parametrize("answer", [{}, {1: BAD}, {0: BAD, 2: NotNow("x", is_behind=True)}])
def test_verdicts_pass(answer: object) -> None:
    assert deliver(answer) == answer


def test_errors_of_ours_pass_and_closing_never_fails() -> None:
    with pytest.raises(SinkRefused):
        deliver(SinkRefused("mine", "its password changed", "change it"))
    PackageSink("mine", "acme 1.2", Answering({})).close()


def test_deliver_each_keeps_the_order_of_keys() -> None:
    history = History()
    changes = [history.update(ORDERS, id=key, n=n) for key, n in ("11", "21", "12", "22")]
    changes += [history.truncate(ORDERS), history.insert(ORDERS, id="3", n="1")]
    sent = list[object]()

    def send(change) -> Verdict | None:
        sent.append(change.key)
        return Refused("no") if change.key == ("1",) else None

    verdicts = deliver_each(batch(*changes), send)
    behind = NotNow("an earlier change of its key was not delivered", is_behind=True)
    assert verdicts == {0: Refused("no"), 2: behind, 4: behind, 5: behind}
    assert sent == [("1",), ("2",), ("2",)]


def test_a_context_does_not_show_secrets() -> None:
    assert "hush" not in repr(SinkContext("shop", "mine", {"TOKEN": "hush"}))


@pytest.mark.parametrize("file", ["pyproject.toml", "pgstream_sqlite.py"])
def test_the_guide_shows_the_package_that_is_tested(file: str) -> None:
    root = Path(__file__).parents[3]
    content = (root / "tests/support/packages/pgstream-sqlite" / file).read_text()
    assert f"\n{content}```" in (root / "docs/guides/write-a-sink.md").read_text()


def test_sink_of_the_guide_publishes_an_event_with_its_id_group_and_route() -> None:
    """SNS has no server of ours, so its client is a stand-in; the code is the guide's."""
    guide = (Path(__file__).parents[3] / "docs/guides/write-a-sink.md").read_text()
    [code] = [b for b in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "SnsSink" in b]
    names: dict[str, Any] = {}
    exec(code, names)
    context = SinkContext("shop", "news", {})
    sink = names["SnsSink"](names["Settings"](topic_arn="arn:news.fifo"), context)
    sink.client = Mock()
    given = [event(1, '{"n": 1}', group_id="a"), event(2, topic_arn="arn:other")]
    assert sink.deliver(ChangeBatch(given)) == {}
    first, second = (call.kwargs for call in sink.client.publish.call_args_list)
    assert (first["TopicArn"], first["Message"]) == ("arn:news.fifo", '{"n": 1}')
    assert first["MessageGroupId"] == "a"
    assert first["MessageDeduplicationId"] == event_id(1)
    assert first["MessageAttributes"]["pgstream-id"]["StringValue"] == event_id(1)
    assert second["TopicArn"] == "arn:other"
    assert "MessageGroupId" not in second
    without = names["SnsSink"](names["Settings"](), context)
    without.client = Mock()
    [refused] = without.deliver(ChangeBatch([event(1)])).values()
    assert "sinks.news.sns.topic_arn" in refused.reason
