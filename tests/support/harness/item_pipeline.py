"""A pipeline with one table and one index, for tests of what happens to the index."""

from __future__ import annotations

from pathlib import Path

from pgstream_dagster.config import IndexConfig
from pgstream_dagster.pipeline import Pipeline
from tests.support.harness import search_pipelines
from tests.support.plugins.cluster import psql


def made(dsn: str, folder: Path, url: str, alias: str, *, rows: int = 100) -> Pipeline:
    """Set up over the table `item` with so many rows."""
    psql(
        dsn,
        "create table item (id bigint primary key, n int)",
        f"insert into item select i, i from generate_series(1, {rows}) i",
    )
    return search_pipelines.made(dsn, folder, url, **{alias: IndexConfig(table="public.item")})
