"""
A process of a pipeline on Kafka, for tests that kill it.

`python -m tests.support.harness.consumer_process FOLDER MODE` lands what is in the topics: all that
is there now (`drain`), or until SIGTERM (`stream`).
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import load
from pgstream_dagster.consumer.consume import consume
from pgstream_dagster.pipeline import Pipeline
from tests.support.plugins.lake import SETTINGS

FILE = "pgstream.yaml"


def pipeline_in(folder: Path) -> Pipeline:
    """The pipeline whose file and lake are in a folder."""
    return Pipeline(load(folder / FILE), "", Lake(str(folder / "lake")), SETTINGS, folder / "state")


def main() -> None:
    """Land records."""
    logging.basicConfig(level=logging.INFO)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consume(pipeline_in(Path(sys.argv[1])), stop=stop, is_drain=sys.argv[2] == "drain")


if __name__ == "__main__":
    main()
