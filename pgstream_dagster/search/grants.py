"""Privileges in the search cluster: the role to create, and what our user lacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from pgstream_dagster.errors import SearchFailed
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.control import CONTROL
from pgstream_dagster.search.schema_index import SCHEMA_INDEX

Engine: TypeAlias = Literal["opensearch", "elasticsearch"]

ELASTICSEARCH_CLUSTER: Final = ["monitor"]
ELASTICSEARCH_INDEX: Final = ["manage", "read", "write"]

OPENSEARCH_CLUSTER: Final = [
    "cluster_monitor",
    "cluster_composite_ops",
    "indices:data/read/scroll",
    "indices:data/read/scroll/clear",
]
"""Bulk requests and scrolls need privileges on the cluster, and then on each index."""


def role(engine: Engine, aliases: Iterable[str]) -> str:
    """The request that creates the minimal role for these aliases, for the cluster's console."""
    path = "_plugins/_security/api/roles" if engine == "opensearch" else "_security/role"
    names = [*patterns(aliases), SCHEMA_INDEX]
    body = _opensearch(names) if engine == "opensearch" else _elasticsearch(names)
    return f"PUT {path}/pgstream\n{json.dumps(body, indent=2)}"


def lacking(cluster: Cluster, aliases: Iterable[str]) -> list[str]:
    """
    Privileges that our user lacks, as Elasticsearch reports them; OpenSearch does not.

    Also empty if security is off.
    """
    role = _elasticsearch(patterns(aliases))  # the history of the schema is not required
    body = {"cluster": role["cluster"], "index": role["indices"]}
    try:
        answer = cluster.request("POST", "/_security/user/_has_privileges", body)
    except SearchFailed:
        return []
    privileges = [("cluster", answer["cluster"]), *answer["index"].items()]
    return [
        f"{privilege} of {target}"
        for target, held in privileges
        for privilege, has in held.items()
        if not has
    ]


def patterns(aliases: Iterable[str]) -> list[str]:
    """Every index and alias that is ours."""
    return [CONTROL, *(name for alias in aliases for name in (alias, f"{alias}-*", f"{alias}.*"))]


def _opensearch(names: Sequence[str]) -> dict[str, Any]:
    allowed = {"index_patterns": names, "allowed_actions": ["indices_all"]}
    return {"cluster_permissions": OPENSEARCH_CLUSTER, "index_permissions": [allowed]}


def _elasticsearch(names: Sequence[str]) -> dict[str, Any]:
    allowed = {"names": names, "privileges": ELASTICSEARCH_INDEX}
    return {"cluster": ELASTICSEARCH_CLUSTER, "indices": [allowed]}
