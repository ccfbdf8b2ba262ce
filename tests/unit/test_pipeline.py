"""A pipeline before anything is opened."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from pgstream_dagster import Pipeline


def test_a_pipeline_of_the_environment_can_be_sent_to_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop")
    monkeypatch.setenv("PGSTREAM_DSN", "dbname=shop")
    monkeypatch.setenv("PGSTREAM_LAKE", str(tmp_path / "lake"))
    pipeline = Pipeline.from_file(file, os.environ)
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline
