"""
The pipeline file: what to capture, where to, how much at a time. How to reach things is not here.

A file goes in; one frozen `PipelineConfig` comes out, or every problem at once. Unknown and
repeated keys are refused. May import `errors` and `patterns`. Read `pipeline`, `sinks`,
`modifiers`, `transformers`, `column_types`, `section`, `load`, `reference`.
"""

from pgstream_dagster.config.load import load, parse
from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.config.pipeline import (
    CaptureConfig,
    CopyConfig,
    IndexConfig,
    PipelineConfig,
    SourceConfig,
)
from pgstream_dagster.config.reference import reference
from pgstream_dagster.config.sinks import SinkConfig

__all__ = [
    "CaptureConfig",
    "CopyConfig",
    "IndexConfig",
    "ModifierConfig",
    "PipelineConfig",
    "SinkConfig",
    "SourceConfig",
    "load",
    "parse",
    "reference",
]
