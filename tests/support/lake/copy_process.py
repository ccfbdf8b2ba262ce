"""One `setup` in a process of its own, which a failpoint of the environment may kill."""

from __future__ import annotations

import sys
from pathlib import Path

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import parse
from pgstream_dagster.copy import copy_plan
from pgstream_dagster.delta.jvm import JvmSettings
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.upkeep.setup import setup

CONFIG = "pipeline: shop\ncopy: {ranges: 4, parallel: 1}"

if __name__ == "__main__":
    _, dsn, lake, state = sys.argv
    copy_plan.TASK_PAGES = 2  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]
    setup(Pipeline(parse(CONFIG), dsn, Lake(lake), JvmSettings(), Path(state)))
