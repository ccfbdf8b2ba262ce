"""
The indices behind an alias: created, checked, promoted.

Searches use the alias alone and see one complete index at every moment: an alias moves in one
atomic update. Each promotion leaves a marker, an alias with the promotion's number. The next
promotion removes that marker in the same update and fails if it is missing, so alias updates are a
compare-and-set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pgstream_dagster.errors import AliasTaken, IndexGone, PromotionOvertaken
from pgstream_dagster.search.answers import Json, NotThere, understood
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.control import Generation
from pgstream_dagster.search.fields import Field, mapping_of

KEPT_DELETES: Final = "1h"
"""How long an index remembers the version of a deleted document (in memory; default 1 minute)."""

FIELDS_AT_MOST: Final = 5_000
"""A table has up to 1,600 columns, and a text column is two fields; renames add more."""

OBJECTS: Final = frozenset({"object", "nested"})

WHILE_LOADING: Final = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
"""No search reads it yet, and replicas are copied once instead of indexed again."""

STANDARD: Final = {
    "index.gc_deletes": KEPT_DELETES,
    "index.mapping.total_fields.limit": FIELDS_AT_MOST,
}


@dataclass(frozen=True, slots=True)
class Live:
    """The index that an alias points to, and the number of the promotion that moved it there."""

    index: str
    promotion: int


def marker(alias: str, promotion: int) -> str:
    """The alias that records which promotion moved `alias` last."""
    return f"{alias}.promotion-{promotion}"


def live(cluster: Cluster, alias: str) -> Live | None:
    """
    The index that the alias points to now; `None`: no index yet.

    Raises:
        AliasTaken: it is an index itself, or points to an index that pgstream did not create.
    """
    indices = cluster.aliases(alias)
    if not indices:
        return None
    pattern = re.compile(re.escape(alias) + r"\.promotion-(\d+)")
    for index, aliases in indices.items():
        promotions = [match for name in aliases if (match := pattern.fullmatch(name))]
        if index != alias and len(indices) == 1 and len(promotions) == 1:
            return Live(index, int(promotions[0][1]))
    raise AliasTaken(alias, ", ".join(sorted(indices)))


def create(cluster: Cluster, generation: Generation, settings: Mapping[str, Any]) -> None:
    """Create the generation's index for loading, with its mapping and its writer's alias."""
    body = {
        "settings": {**STANDARD, **_flat(settings), **WHILE_LOADING},
        "mappings": mapping_of(generation.fields),
        "aliases": {generation.writer: {"is_hidden": True}},
    }
    cluster.create(generation.index, body)


def check(cluster: Cluster, generation: Generation, settings: Mapping[str, Any]) -> None:
    """
    Check that the cluster accepts mapping and settings; leaves nothing behind.

    Creates an empty index and drops it: the only way that every engine offers, and that needs no
    further privilege.

    Raises:
        SearchFailed: it does not, with its reason.
    """
    name = f"{generation.alias}-dry-run"  # no number: not the name of a generation
    mapping = mapping_of(generation.fields)
    body = {"settings": {**STANDARD, **_flat(settings)}, "mappings": mapping}
    cluster.drop(name)  # left by a dry run that was killed
    try:
        cluster.create(name, body)
    finally:
        cluster.drop(name)


def finish_load(cluster: Cluster, generation: Generation, settings: Mapping[str, Any]) -> None:
    """Replace the settings for loading by the permanent ones, and make all documents visible."""
    flat = _flat(settings)
    permanent = {name: flat.get(name) for name in WHILE_LOADING}  # null: the cluster's default
    cluster.change("PUT", f"/{generation.index}/_settings", permanent)
    cluster.refresh(generation.index)


def shards(cluster: Cluster, generation: Generation) -> int:
    """The number of primary shards of the index."""
    answer = cluster.request("GET", f"/{generation.index}/_settings")
    with understood(cluster.settings.url):
        return int(answer[generation.index]["settings"]["index"]["number_of_shards"])


def add_fields(
    cluster: Cluster, generation: Generation, added: Iterable[Field], renamed: Mapping[str, Field]
) -> None:
    """
    Add new fields to the index's mapping, and new names of existing ones.

    A renamed column's field can then be searched under both names. An object cannot have a second
    name; it gets the new one with the next re-index.
    """
    properties: Json = {
        name: {"type": "alias", "path": field.name}
        for name, field in renamed.items()
        if field.mapping.get("type", "object") not in OBJECTS
    }
    properties = {field.name: field.mapping for field in added} | properties
    if properties:
        cluster.change("PUT", f"/{generation.index}/_mapping", {"properties": properties})


def promote(cluster: Cluster, generation: Generation, over: Live | None) -> Live:
    """
    Move the alias to the generation, from where it was seen last (`over`).

    Raises:
        PromotionOvertaken: it has moved since, or the index that it was on is gone.
        IndexGone: the generation's own index is gone.
    """
    alias, number = generation.alias, 1 if over is None else over.promotion + 1
    old = [] if over is None else [marker(alias, over.promotion), alias]
    index = None if over is None else over.index
    remove = [{"remove": {"index": index, "alias": name, "must_exist": True}} for name in old]
    new = [alias, marker(alias, number)]
    actions = remove + [{"add": {"index": generation.index, "alias": name}} for name in new]
    try:
        cluster.change("POST", "/_aliases", {"actions": actions})
    except NotThere as error:
        if not cluster.exists(generation.index):
            raise IndexGone(generation.index) from error
        raise PromotionOvertaken(alias, generation.index, error.reason) from error
    return Live(generation.index, number)


def _flat(settings: Mapping[str, Any]) -> Json:
    """Settings with the prefix `index.`, as the cluster shows them; nested ones (analysis) stay."""
    inner = settings.get("index", {})
    outer = {name: value for name, value in settings.items() if name != "index"}
    flat = {**outer, **(inner if isinstance(inner, dict) else {})}
    return {name if name.startswith("index.") else f"index.{name}": v for name, v in flat.items()}
