"""The search cluster as a resource: what comes from the environment, and what never does."""

from __future__ import annotations

import pytest

from pgstream_dagster.resources.search import SearchCluster
from pgstream_dagster.search.cluster import SearchSettings


@pytest.fixture(autouse=True)
def site(monkeypatch):
    monkeypatch.setenv("PGSTREAM_SEARCH_URL", "https://search:9200")
    monkeypatch.setenv("PGSTREAM_SEARCH_USER", "indexer")
    monkeypatch.setenv("PGSTREAM_SEARCH_PASSWORD", "hunter2")
    for name in ("PGSTREAM_SEARCH_API_KEY", "PGSTREAM_SEARCH_CA"):
        monkeypatch.delenv(name, raising=False)


def test_fields_left_out_come_from_the_environment():
    assert SearchCluster().settings() == SearchSettings("https://search:9200", "indexer", "hunter2")
    settings = SearchCluster(password="s3cret").settings()
    assert settings == SearchSettings("https://search:9200", "indexer", "s3cret")


def test_credentials_of_the_environment_are_sent_to_no_other_address():
    assert SearchCluster(url="http://other:9200").settings() == SearchSettings("http://other:9200")


def test_pipeline_without_a_cluster_has_none(monkeypatch):
    monkeypatch.delenv("PGSTREAM_SEARCH_URL")
    assert SearchCluster().settings() is None
