"""One `setup` in a process of its own, which a failpoint of the environment may kill."""

from __future__ import annotations

import sys
from pathlib import Path

from pgstream_dagster.changelog.jvm import JvmSettings
from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import parse
from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.operations.setup import setup
from pgstream_dagster.source import copy_plan

CONFIG = "pipeline: shop\ncopy: {ranges: 4, parallel: 1}"

if __name__ == "__main__":
    _, dsn, lake, state = sys.argv
    copy_plan.TASK_PAGES = 2  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]
    setup(Pipeline(parse(CONFIG), dsn, Lake(lake), JvmSettings(), Path(state)))
