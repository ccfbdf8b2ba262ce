"""The tables that the pipeline file names, beside those of `source` and its modifiers."""

from __future__ import annotations

from collections.abc import Iterator

from pgstream_dagster.config.pipeline import PipelineConfig


def named_tables(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Each setting that names tables, with a pattern that it has."""
    for alias, index in config.search.items():
        yield f"search.{alias}.table", index.table
    for modifier, rules in config.modifiers.items():
        if modifier in config.source.modifiers:
            continue
        for key, tables in (("transform", rules.transform), ("drop", rules.drop)):
            yield from ((f"modifiers.{modifier}.{key}", pattern) for pattern in tables)
    for sink, chosen in config.sinks.items():
        if chosen.outbox is None:
            yield from _listed(f"sinks.{sink}", chosen, "tables", "exclude", "schema_only")
    if config.tables is not None:
        yield from _listed("tables", config.tables, "include", "exclude", "history", "types")


def _listed(section: str, settings: object, *keys: str) -> Iterator[tuple[str, str]]:
    return ((f"{section}.{key}", pattern) for key in keys for pattern in getattr(settings, key))
