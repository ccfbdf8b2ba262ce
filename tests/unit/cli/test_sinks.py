"""What `pgstream sink` prints."""

from __future__ import annotations

import json

import pytest

from pgstream_dagster.changelog.sink_letters import SinkLetter, SinkLetterState
from pgstream_dagster.cli import run
from pgstream_dagster.cli.render import as_json, sink_letters_as_json, sink_progress
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.readers.cursor import Cursor
from pgstream_dagster.sinks import control
from pgstream_dagster.sinks import run as sinks_run
from pgstream_dagster.sinks.control import SinkStatus
from pgstream_dagster.sinks.state import Progress

PROGRESS = {
    "late": Progress(error="it is away"),
    "events": Progress(cursor=Cursor(1, 1, watermark=Lsn(0x16_B374_D848)), changes=7, refused=2),
}
STATUS = SinkStatus(
    *("events", "files", None, None, None, None, 0, 0, 0),
    is_running=False,
    is_paused=True,
    error=None,
    health={},
)


def test_progress_as_json_has_positions_as_postgres_prints_them() -> None:
    assert json.loads(as_json(sink_progress(PROGRESS))) == [
        {
            "sink": "events",
            "position": "16/B374D848",
            "changes": 7,
            "dead_letters": 2,
            "error": None,
        },
        {"sink": "late", "position": None, "changes": 0, "dead_letters": 0, "error": "it is away"},
    ]


def test_letters_as_json_have_positions_as_the_log_does() -> None:
    letter = SinkLetter(
        *("events", 1, Lsn(500), 3, SinkLetterState.REFUSED, "public", "t", 7, ("1",), None),
        reason="no",
    )
    [shown] = json.loads(sink_letters_as_json([letter]))
    assert (shown["commit_lsn"], shown["ordinal"], shown["state"]) == (500, 3, "refused")


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pgstream.yaml").write_text("pipeline: shop\nsinks: {events: {stdout: {}}}\n")
    monkeypatch.setenv("PGSTREAM_DSN", "postgresql://nowhere/shop")
    monkeypatch.setenv("PGSTREAM_LAKE", str(tmp_path / "lake"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("pause", "events"), "events is paused; continue with 'pgstream sink resume events'\n"),
        (("resume", "events"), "events continues\n"),
        (("reset", "events", "--from", "start"), "events begins again at start\n"),
    ],
)
def test_requests_print_the_status_as_json_on_request(arguments, text, monkeypatch, capsys) -> None:
    monkeypatch.setattr(control, arguments[0], lambda *_: [STATUS])
    assert run.run(["sink", *arguments]) == 0
    assert capsys.readouterr().out == text
    assert run.run(["sink", *arguments, "--json"]) == 0
    [printed] = json.loads(capsys.readouterr().out)
    assert (printed["sink"], printed["is_paused"]) == ("events", True)


def test_a_run_prints_at_its_end_how_far_each_sink_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sinks_run, "run", lambda *_, **__: PROGRESS)
    assert run.run(["sink", "run"]) == 0
    assert capsys.readouterr().out == ""
    assert run.run(["sink", "run", "--json"]) == 0
    assert [line["sink"] for line in json.loads(capsys.readouterr().out)] == ["events", "late"]
