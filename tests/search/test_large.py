"""Documents that a cluster has no room for, whatever else it is doing."""

from __future__ import annotations

import json

import pytest

from pgstream_dagster.search import bulk
from pgstream_dagster.search.bulk import Write, send
from pgstream_dagster.search.cluster import Cluster, SearchSettings
from tests.support.plugins.search import OwnNode, ask

pytestmark = pytest.mark.slow

SETTINGS = {"indexing_pressure.memory.limit": "2mb", "http.max_content_length": "8mb"}
BYTES = {"small": 100, "counted": 1_500_000, "large": 3_000_000, "huge": 9_000_000, "last": 100}

COUNTS_SEVERAL_TIMES = {"elasticsearch-9"}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_document_that_never_fits_is_refused_and_stops_no_other(own_search_node: OwnNode) -> None:
    node = own_search_node
    node.settings |= SETTINGS
    node.restart()
    mapping = {"dynamic": False, "properties": {"body": {"type": "text"}}}
    ask(node, "PUT", "/large-1", {"mappings": mapping, "aliases": {"large": {}}})
    cluster = Cluster(SearchSettings(node.url))
    try:
        documents = [
            Write(name, 100, json.dumps({"body": "words " * (size // 6)}))
            for name, size in BYTES.items()
        ]
        refused = send(cluster, "large", documents)
    finally:
        cluster.close()
    expected = {"large", "huge"} | ({"counted"} if node.name in COUNTS_SEVERAL_TIMES else set())
    assert {write.id for write, _ in refused} == expected
    assert {refusal.type for _, refusal in refused} == {bulk.TOO_LARGE}
    ask(node, "POST", "/large-1/_refresh")
    assert ask(node, "GET", "/large-1/_count")["count"] == len(BYTES) - len(expected)
