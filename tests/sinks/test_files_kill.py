"""Files of lines: killed at every step, a full disk, and files that somebody removed."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import Pipeline, read_changes, setup
from pgstream_dagster.config.sinks import FilesConfig
from pgstream_dagster.errors import SinkUnreachable
from pgstream_dagster.readers.change import Change, changes_of
from pgstream_dagster.schema.layout import CHANGES
from pgstream_dagster.sinks import lines as lines_module
from pgstream_dagster.sinks.lines import FilesSink
from tests.support.harness.crash_points import WRITING_FILES
from tests.support.harness.runner import catch_up, streaming
from tests.support.harness.sinks_run import delivering
from tests.support.plugins.cluster import psql
from tests.support.plugins.wait import until
from tests.support.webhooks import batch, insert

KILLED_AT = (*WRITING_FILES, "sink.delivered", "sink.saved:3")

FILE = """
pipeline: {name}
sinks:
  archive:
    files: {{folder: archive, rotate_bytes: 20000}}
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.one_major("newest")
def test_files_have_the_sequence_of_every_key_after_kills_and_removed_files(
    dsn: str, tmp_path: Path, spark: object
) -> None:
    psql(dsn, "create table t (id bigint primary key, n int)")
    name = f"p_{conninfo_to_dict(dsn)['dbname']}"
    (tmp_path / "pgstream.yaml").write_text(FILE.format(name=name))
    environment = {
        "PGSTREAM_DSN": dsn,
        "PGSTREAM_LAKE": str(tmp_path / "lake"),
        "PGSTREAM_STATE": str(tmp_path / "state"),
    }
    pipeline = Pipeline.from_file(tmp_path / "pgstream.yaml", environment)
    setup(pipeline)
    seen, turns = dict[str, list[Any]](), itertools.count(1)

    def work() -> None:
        turn = next(turns)
        psql(
            dsn,
            f"insert into t select g, {turn} from generate_series({turn}00, {turn}20) g",
            f"update t set n = n + 1 where id between {turn}00 and {turn}02",
        )

    for failpoint in KILLED_AT:
        with streaming(pipeline), delivering(tmp_path, environment, failpoint=failpoint) as process:
            until(lambda: work() or process.poll() is not None, every=0.5)
            assert process.returncode == -signal.SIGKILL
        seen |= {path.name: parsed(path) for path in files(tmp_path)}
        files(tmp_path)[0].unlink()  # by hand, after it was read
    catch_up(pipeline)
    expected = event_ids(pipeline)
    with delivering(tmp_path, environment):

        def delivered() -> list[str]:
            now = seen | {path.name: parsed(path) for path in files(tmp_path)}
            return [line["event_id"] for name in sorted(now) for line in now[name]]

        until(lambda: set(delivered()) >= set(expected), progress=lambda: len(delivered()))
        assert list(dict.fromkeys(delivered())) == expected


def files(folder: Path) -> list[Path]:
    return sorted((folder / "archive").glob("*.ndjson"))


def parsed(path: Path) -> list[Any]:
    """The complete lines of a file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def event_ids(pipeline: Pipeline) -> list[str]:
    changes = read_changes(pipeline, "t").where("op <> 'copy'")
    rows = changes.orderBy("commit_lsn", "ordinal").toArrow().cast(CHANGES)
    with pipeline.open() as opened:
        return [c.event_id for c in changes_of(rows, opened.schema_log.by_id())]


def files_sink(folder: Path) -> FilesSink:
    def render(changes: Sequence[Change]) -> list[bytes]:
        return [json.dumps({"id": change.event_id}).encode() for change in changes]

    sink = FilesSink("out", FilesConfig(folder=str(folder), rotate_bytes=1024), render)
    sink.open()
    return sink


def ids(folder: Path) -> list[str]:
    return [line["id"] for path in sorted(folder.iterdir()) for line in parsed(path)]


def test_a_full_disk_leaves_no_half_of_a_batch(tmp_path, monkeypatch):
    sink, changes = files_sink(tmp_path), [insert(n) for n in range(30)]
    sink.deliver(batch(*changes[:10]))
    write = os.write

    def full(descriptor: int, content: Any) -> int:
        if len(content) < 300:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content[:100])

    with monkeypatch.context() as patched:
        patched.setattr(lines_module.os, "write", full)
        for _ in range(3):
            with pytest.raises(SinkUnreachable, match="No space left"):
                sink.deliver(batch(*changes[10:]))
            sink.close()
            sink.open()
    sink.deliver(batch(*changes[10:]))
    sink.close()
    assert ids(tmp_path) == [change.event_id for change in changes]


def test_a_removed_file_is_noticed_before_the_next_batch(tmp_path):
    sink, changes = files_sink(tmp_path), [insert(n) for n in range(4)]
    sink.deliver(batch(*changes[:2]))
    for path in tmp_path.iterdir():
        path.unlink()
    sink.deliver(batch(*changes[2:]))
    sink.close()
    assert ids(tmp_path) == [change.event_id for change in changes[2:]]


def test_a_removed_folder_is_made_again(tmp_path):
    folder = tmp_path / "out"
    sink = files_sink(folder)
    sink.deliver(batch(insert(1)))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    sink.deliver(batch(insert(2)))
    sink.close()
    assert ids(folder) == [insert(2).event_id]


def test_a_number_is_not_given_twice_while_a_later_file_is_there(tmp_path):
    sink = files_sink(tmp_path)
    for n in range(40):
        sink.deliver(batch(*[insert(10 * n + m) for m in range(10)]))
    names = sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / names[0]).unlink()
    sink.close()
    sink.open()
    sink.deliver(batch(insert(9_999)))
    assert sorted(path.name for path in tmp_path.iterdir())[:1] == names[1:2]
