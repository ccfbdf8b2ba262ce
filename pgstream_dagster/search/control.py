"""
What is known of generations, kept in the cluster beside them: one small control index.

A generation is one physical index behind an alias. Its record says how far it is and who writes to
it; the one who holds its lease is its only writer. Every change of a record is a compare-and-set on
the document's sequence number, so a writer that was replaced finds out at its next save. Records
are read by id, which is real-time. All of it can be rebuilt from the log by `reindex`.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pgstream_dagster.errors import GenerationHeld, LeaseLost, SearchError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.process_identity import has_ended, this_process
from pgstream_dagster.search.answers import Conflict, Json
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.fields import Field
from pgstream_dagster.search.types import Kind

logger = logging.getLogger(__name__)

CONTROL: Final = "pgstream-control"
"""The index of records, one for all pipelines of a cluster."""

SETTINGS: Final = {"number_of_shards": 1, "auto_expand_replicas": "0-1"}
MAPPING: Final = {
    "dynamic": False,
    "properties": {name: {"type": "keyword"} for name in ("pipeline", "alias", "state")},
}

LEASE_SECONDS: Final = 20.0
"""Of silence, after which a writer counts as dead. On its own machine it is seen at once."""


class State(StrEnum):
    """What a generation is to its alias."""

    BUILDING = "building"
    CATCHING_UP = "catching_up"
    PROMOTING = "promoting"  # the writer of the live one lets go of it, so that readers never
    # see the alias move to less than it showed
    LIVE = "live"
    KEPT = "kept"
    RETIRING = "retiring"


@dataclass(frozen=True, slots=True)
class Generation:
    """
    The record of one generation.

    `delivered` is the watermark up to which every change is in the index. `copied_at` is the
    consistent point of the copy that it began with, in `relation_id`. `outdated` says why a
    re-index is due, if one is; `is_closed`: changes are missing, and nothing more can be applied.
    `asked`: what the pipeline file said of the index when it was begun. `is_pinned`: a rollback has
    chosen it, so nothing but a person moves the alias on.
    """

    alias: str
    number: int
    state: State
    epoch: int
    relation_id: int
    copied_at: Lsn
    delivered: Lsn
    fields: tuple[Field, ...] = ()
    id_columns: tuple[str, ...] | None = None
    refused: int = 0
    outdated: str | None = None
    is_closed: bool = False
    asked: str = ""
    is_pinned: bool = False
    created_at: float = field(default_factory=time.time)  # seconds since 1970

    @property
    def index(self) -> str:
        """The physical index."""
        return f"{self.alias}-{self.number:06d}"

    @property
    def was_live(self) -> bool:
        """Whether it is complete; also while a rollback promotes it, or was killed at that."""
        is_coming_back = self.state is State.PROMOTING and self.is_pinned
        return self.state in (State.LIVE, State.KEPT) or is_coming_back

    @property
    def writer(self) -> str:
        """The alias that only its writer uses, so that a deleted index is not made again."""
        return f"{self.index}.writer"


@dataclass(frozen=True, slots=True)
class _Holder:
    name: str  # `this_process()`
    until: float  # seconds since 1970


def create(cluster: Cluster) -> None:
    """Make the control index unless it is there."""
    body = {"settings": SETTINGS, "mappings": MAPPING}
    if not cluster.exists(CONTROL):
        cluster.create(CONTROL, body)


class Control:
    """The records of one alias of one pipeline."""

    def __init__(self, cluster: Cluster, pipeline: str, alias: str) -> None:
        self._cluster, self._prefix, self.alias = cluster, f"{pipeline}/{alias}", alias

    def generations(self) -> list[Generation]:
        """Every generation that was not retired, the newest last."""
        known = self._cluster.get(CONTROL, self._prefix)
        numbers: Sequence[int] = known["_source"]["generations"] if known else []
        ids = [self._id(number) for number in numbers]
        found = self._cluster.sources(CONTROL, ids)
        return [_generation(json.loads(found[each].source)) for each in ids if each in found]

    def of(self, index: str) -> Generation | None:
        """The generation of an index; `None`: there is no record of it."""
        return next((each for each in self.generations() if each.index == index), None)

    def former(self, live_index: str) -> list[Generation]:
        """What the alias was on before, the newest last."""
        return [g for g in self.generations() if g.was_live and g.index != live_index]

    def promoting(self) -> bool:
        """Whether somebody who lives is about to move the alias."""
        return any(self._have_writers(State.PROMOTING))

    def is_written(self) -> bool | None:
        """Whether the live generation has a writer who lives; `None`: there is no live one."""
        live = self._have_writers(State.LIVE)
        return any(live) if live else None

    def _have_writers(self, state: State) -> list[bool]:
        """Of each generation in this state, whether it has a writer who lives."""
        numbers = [each.number for each in self.generations() if each.state is state]
        known = [self._cluster.get(CONTROL, self._id(number)) for number in numbers]
        holders = [_holder(each["_source"]) for each in known if each is not None]
        return [holder is not None and _is_alive(holder) for holder in holders]

    def begin(self, generation: Generation) -> Lease:
        """Record a new generation under the next number, held by this process."""
        while True:
            known = self._cluster.get(CONTROL, self._prefix)
            source: Json = known["_source"] if known else {"last": 0, "generations": []}
            number = max(source["last"], *self._there()) + 1
            source = {**source, "last": number, "generations": [*source["generations"], number]}
            try:
                self._cluster.put(CONTROL, self._prefix, source, over=known)
            except Conflict:
                continue
            begun = replace(generation, number=number)
            lease = Lease(self._cluster, self._id(number), begun, None)
            lease.save()
            return lease

    def _there(self) -> list[int]:
        """Numbers of the indices there are, whatever the records say: those may have been lost."""
        named = re.compile(re.escape(self.alias) + r"-(\d{6,})")
        found = self._cluster.aliases(f"{self.alias}-*")
        return [0, *(int(told[1]) for index in found if (told := named.fullmatch(index)))]

    def hold(self, number: int) -> Lease:
        """
        Become the writer of a generation.

        Raises:
            GenerationHeld: another is.
            LeaseLost: it was retired, or another was faster.
        """
        known = self._cluster.get(CONTROL, self._id(number))
        if known is None:
            raise LeaseLost(f"{self.alias}-{number:06d}")
        generation, holder = _generation(known["_source"]), _holder(known["_source"])
        if holder is not None and _is_alive(holder):
            raise GenerationHeld(generation.index, holder.name)
        lease = Lease(self._cluster, self._id(number), generation, known)
        lease.save()
        return lease

    def forget(self, lease: Lease) -> None:
        """Remove the record of a generation whose index is gone."""
        number = lease.generation.number
        lease.release()
        while True:
            known = self._cluster.get(CONTROL, self._prefix)
            if known is None:
                return
            source = known["_source"]
            left = [other for other in source["generations"] if other != number]
            try:
                self._cluster.put(
                    CONTROL, self._prefix, {**source, "generations": left}, over=known
                )
            except Conflict:
                continue
            self._cluster.delete(CONTROL, self._id(number))
            return

    def _id(self, number: int) -> str:
        return f"{self._prefix}/{number}"


class Lease:
    """The right to write to one generation; one thread uses it, `save` keeps it."""

    def __init__(
        self, cluster: Cluster, document: str, generation: Generation, known: Json | None
    ) -> None:
        self.generation = generation
        self._cluster, self._document, self._known = cluster, document, known
        self._until = 0.0  # by this process' own clock

    def save(self, **changes: Any) -> None:
        """
        Write the record, with `changes` of the generation, and hold it for another while.

        Raises:
            LeaseLost: another holds it, or it is gone.
        """
        self._write(
            replace(self.generation, **changes),
            _Holder(this_process(), time.time() + LEASE_SECONDS),
        )

    def keep(self) -> None:
        """Save when a third of the lease is over; before anything slow, and between."""
        if self._until - time.monotonic() < LEASE_SECONDS * 2 / 3:
            self.save()

    def require(self) -> None:
        """Before every write to the index: no other process may have begun to write by now."""
        if time.monotonic() > self._until:
            self.save()  # a process that slept: the compare-and-set says whether it was replaced

    def release(self, **changes: Any) -> None:
        """Save, and leave the generation to the next one."""
        self._write(replace(self.generation, **changes), None)
        self._until = 0.0

    def leave(self) -> LeaseLost | None:
        """Let go, for the end after an error; gives back that it was another's already."""
        try:
            self.release()
        except SearchError as error:
            logger.warning("%s is let go when its lease ends: %s", self.generation.index, error)
            return error if isinstance(error, LeaseLost) else None
        return None

    def _write(self, generation: Generation, holder: _Holder | None) -> None:
        source = _source(generation) | {"holder": None if holder is None else asdict(holder)}
        asked = time.monotonic()
        try:
            known = self._cluster.put(CONTROL, self._document, source, over=self._known)
        except Conflict as error:
            raise LeaseLost(generation.index) from error
        self._known, self.generation = known, generation
        self._until = asked + LEASE_SECONDS


def _source(generation: Generation) -> Json:
    said = asdict(generation)
    fields = [asdict(each) for each in generation.fields]
    lsns = {name: str(said[name]) for name in ("copied_at", "delivered")}
    return {**said, **lsns, "fields": fields, "state": generation.state.value}


def _generation(source: Mapping[str, Any]) -> Generation:
    said: Json = {name: value for name, value in source.items() if name != "holder"}
    ids, fields = said["id_columns"], said["fields"]
    typed: Json = {
        "state": State(said["state"]),
        "copied_at": Lsn.parse(said["copied_at"]),
        "delivered": Lsn.parse(said["delivered"]),
        "fields": tuple(_field(each) for each in fields),
        "id_columns": None if ids is None else tuple(ids),
    }
    return Generation(**{**said, **typed})


def _field(said: Json) -> Field:
    typed: Json = {"kind": Kind(said["kind"])}
    return Field(**{**said, **typed})


def _holder(source: Mapping[str, Any]) -> _Holder | None:
    return None if source["holder"] is None else _Holder(**source["holder"])


def _is_alive(holder: _Holder) -> bool:
    """Until its lease ends, or its process is seen to have ended."""
    return holder.until > time.time() and not has_ended(holder.name)
