"""
Indices behind an alias: made, promoted, retired.

Readers use the alias alone and see one complete index at every moment: an alias moves in one atomic
update. Each promotion leaves a marker, an alias with a number of its own; the next one removes it
in the same update and fails when it is not there, so alias updates are a compare-and-set and only
ever go on from the promotion that they have seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pgstream_dagster.errors import AliasTaken, IndexGone, PromotionOvertaken
from pgstream_dagster.search.answers import Json, NotThere, understood
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.control import Generation
from pgstream_dagster.search.fields import Field, mapping_of

KEPT_DELETES: Final = "1h"
"""How long an index remembers the version of what was deleted (in memory, by default a minute)."""

FIELDS_AT_MOST: Final = 5_000
"""A table has up to 1,600 columns, and one of text is two fields; renames add more."""

OBJECTS: Final = frozenset({"object", "nested"})

WHILE_LOADING: Final = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
"""It is not read yet, and replicas are copied once instead of indexed again."""


STANDARD: Final = {
    "index.gc_deletes": KEPT_DELETES,
    "index.mapping.total_fields.limit": FIELDS_AT_MOST,
}


@dataclass(frozen=True, slots=True)
class Live:
    """Where an alias points, and the number of the promotion that moved it there."""

    index: str
    promotion: int


def marker(alias: str, promotion: int) -> str:
    """The alias that says which promotion put `alias` where it is."""
    return f"{alias}.promotion-{promotion}"


def live(cluster: Cluster, alias: str) -> Live | None:
    """
    Where the alias points now; `None`: nowhere yet.

    Raises:
        AliasTaken: it is an index itself, or points to what this package has not made.
    """
    found = cluster.aliases(alias)
    if not found:
        return None
    pattern = re.compile(re.escape(alias) + r"\.promotion-(\d+)")
    for index, aliases in found.items():
        promotions = [told for name in aliases if (told := pattern.fullmatch(name))]
        if index != alias and len(found) == 1 and len(promotions) == 1:
            return Live(index, int(promotions[0][1]))
    raise AliasTaken(alias, ", ".join(sorted(found)))


def make(cluster: Cluster, generation: Generation, settings: Mapping[str, Any]) -> None:
    """Make the generation's index for loading, with its mapping and its writer's alias."""
    body = {
        "settings": {**STANDARD, **_flat(settings), **WHILE_LOADING},
        "mappings": mapping_of(generation.fields),
        "aliases": {generation.writer: {"is_hidden": True}},
    }
    cluster.create(generation.index, body)


def check(cluster: Cluster, generation: Generation, settings: Mapping[str, Any]) -> None:
    """
    Ask the cluster whether it accepts mapping and settings; nothing of it stays.

    An empty index is the only question that every engine answers, and that needs no other right.

    Raises:
        SearchFailed: it does not, with its reason.
    """
    name = f"{generation.alias}-dry-run"  # no number: it is taken for no generation
    body = {
        "settings": {**STANDARD, **_flat(settings)},
        "mappings": mapping_of(generation.fields),
    }
    cluster.drop(name)  # of a dry run that was killed
    try:
        cluster.create(name, body)
    finally:
        cluster.drop(name)


def loaded(cluster: Cluster, generation: Generation, settings: Mapping[str, Any]) -> None:
    """Give the index the settings it shall live with, and make what it holds visible."""
    given = _flat(settings)
    wanted = {name: given.get(name) for name in WHILE_LOADING}  # null: the cluster's default
    cluster.change("PUT", f"/{generation.index}/_settings", wanted)
    refresh(cluster, generation)


def refresh(cluster: Cluster, generation: Generation) -> None:
    """Make everything written so far visible to searches."""
    cluster.refresh(generation.index)


def count(cluster: Cluster, generation: Generation) -> int:
    """The documents that searches see."""
    return cluster.count(generation.index)


def shards(cluster: Cluster, generation: Generation) -> int:
    """How many primary shards the index has."""
    found = cluster.request("GET", f"/{generation.index}/_settings")
    with understood(cluster.settings.url):
        return int(found[generation.index]["settings"]["index"]["number_of_shards"])


def add_fields(cluster: Cluster, generation: Generation, properties: Json) -> None:
    """Add fields to the index's mapping."""
    if properties:
        cluster.change("PUT", f"/{generation.index}/_mapping", {"properties": properties})


def promote(cluster: Cluster, generation: Generation, over: Live | None) -> Live:
    """
    Move the alias to the generation, from where `over` has seen it.

    Raises:
        PromotionOvertaken: it has been moved meanwhile, or the index that it was on is gone.
        IndexGone: the generation's own index is.
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


def alias_fields(renamed: Mapping[str, Field]) -> Json:
    """
    Properties by which a field is searched under its column's new name, too.

    An object cannot have a second name; its new one comes with the next re-index.
    """
    return {
        name: {"type": "alias", "path": of.name}
        for name, of in renamed.items()
        if of.mapping.get("type", "object") not in OBJECTS
    }


def _flat(settings: Mapping[str, Any]) -> Json:
    """Settings as the cluster shows them: `index.` in front; nested ones (analysis) stay."""
    inner = settings.get("index", {})
    outer = {name: value for name, value in settings.items() if name != "index"}
    said = {**outer, **(inner if isinstance(inner, dict) else {})}
    return {name if name.startswith("index.") else f"index.{name}": v for name, v in said.items()}
