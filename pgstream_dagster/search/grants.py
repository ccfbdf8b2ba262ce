"""What a user of the search cluster may do: the role to make, and whether ours has enough."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

from pgstream_dagster.errors import SearchFailed
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.control import CONTROL

Engine: TypeAlias = Literal["opensearch", "elasticsearch"]

ELASTICSEARCH_CLUSTER: Final = ["monitor"]
ELASTICSEARCH_INDEX: Final = ["manage", "read", "write"]

OPENSEARCH_CLUSTER: Final = [
    "cluster_monitor",
    "cluster_composite_ops",
    "indices:data/read/scroll",
    "indices:data/read/scroll/clear",
]
"""Bulk requests and scrolls are checked for the cluster first, then for each index."""


def role(engine: Engine, aliases: Iterable[str]) -> str:
    """The request that makes the least role for these aliases, as its console takes it."""
    path = "_plugins/_security/api/roles" if engine == "opensearch" else "_security/role"
    body = _opensearch(aliases) if engine == "opensearch" else _elasticsearch(aliases)
    return f"PUT {path}/pgstream\n{json.dumps(body, indent=2)}"


def lacking(cluster: Cluster, aliases: Iterable[str]) -> list[str]:
    """
    Privileges that our user lacks, as Elasticsearch says; OpenSearch says it of no user.

    Empty, too, where security is off.
    """
    asked = _elasticsearch(aliases)
    try:
        said = cluster.request(
            "POST",
            "/_security/user/_has_privileges",
            {"cluster": asked["cluster"], "index": asked["indices"]},
        )
    except SearchFailed:
        return []
    of_indices = said["index"].items()
    found = [("cluster", said["cluster"]), *of_indices]
    return [f"{what} of {of}" for of, held in found for what, has in held.items() if not has]


def patterns(aliases: Iterable[str]) -> list[str]:
    """Every index and alias that is ours."""
    of_aliases = [name for alias in aliases for name in (alias, f"{alias}-*", f"{alias}.*")]
    return [CONTROL, *of_aliases]


def _opensearch(aliases: Iterable[str]) -> dict[str, Any]:
    allowed = {"index_patterns": patterns(aliases), "allowed_actions": ["indices_all"]}
    return {"cluster_permissions": OPENSEARCH_CLUSTER, "index_permissions": [allowed]}


def _elasticsearch(aliases: Iterable[str]) -> dict[str, Any]:
    allowed = {"names": patterns(aliases), "privileges": ELASTICSEARCH_INDEX}
    return {"cluster": ELASTICSEARCH_CLUSTER, "indices": [allowed]}
