"""The guide of the queues: what it configures is valid, and its tables have every target."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pgstream_dagster.config.queues import QueueConfig
from pgstream_dagster.config.sinks import TARGETS, SinkConfig

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "queues.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def sinks() -> list[SinkConfig]:
    listed = [sink for block in BLOCKS for sink in yaml.safe_load(block)["sinks"].values()]
    return [SinkConfig.model_validate(sink) for sink in listed]


def queues() -> list[str]:
    fields = {name: SinkConfig.model_fields[name].annotation for name in TARGETS}
    return [name for name, kind in fields.items() if issubclass(_section(kind), QueueConfig)]


def _section(kind: object) -> type:
    return next(part for part in kind.__args__ if part is not type(None))  # type: ignore[attr-defined]


def test_every_block_is_valid() -> None:
    assert sinks()


@pytest.mark.parametrize("queue", queues())
def test_every_queue_is_configured_once_at_least_and_has_its_rows(queue: str) -> None:
    assert queue in {sink.target for sink in sinks()}
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    tables = [text for text in sections if "| target |" in text]
    assert len(tables) == 4 and all(f"| `{queue}`" in table for table in tables)
