"""The code location of a pipeline that has a Dagster of its own."""

import os

import dagster as dg

from pgstream_dagster.build import build_definitions
from pgstream_dagster.settings import pipeline_file

defs = dg.Definitions.merge(
    build_definitions(pipeline_file(None, os.environ)),
    # What *Materialize* runs is no job of ours: it takes the location's executor, and one JVM.
    dg.Definitions(executor=dg.in_process_executor),
)
