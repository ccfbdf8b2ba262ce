"""Merges that end at a failpoint: in this process, or killed in one of their own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

import pytest

from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables import approval, direct, merge, target
from pgstream_dagster.tables.history import merge as history_merge
from pgstream_dagster.tables.history import target as history_target
from tests.support.harness import background


class Ended(BaseException):
    """The process ends here."""


EndsAt: TypeAlias = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def ends_at(monkeypatch: pytest.MonkeyPatch) -> EndsAt:
    """A block that must end where it passes a failpoint, as far as the lake can see."""

    @contextmanager
    def ends(name: str) -> Generator[None]:
        def reach(reached: str) -> None:
            if reached == name:
                raise Ended

        with monkeypatch.context() as patch:
            for module in (approval, direct, merge, target, history_merge, history_target):
                patch.setattr(module, "reach", reach)
            with pytest.raises(Ended):
                yield

    return ends


def kill_merge(pipeline: Pipeline, failpoint: str, *rebuild: str) -> None:
    """Run a merge in a process of its own: it must reach the failpoint and end there."""
    folder, tables = pipeline.state.parent, pipeline.config.tables
    assert tables is not None
    process = background.start(
        "tests.support.harness.typed_tables",
        pipeline.dsn,
        str(folder),
        tables.model_dump_json(),
        *rebuild,
        log=folder / "merge.log",
        failpoint=failpoint,
    )
    assert process.wait(background.END_SECONDS) == -signal.SIGKILL, (
        folder / "merge.log"
    ).read_text()
