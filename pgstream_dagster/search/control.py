"""
Records of generations, kept in the same cluster: one small control index.

A generation is one physical index behind an alias. Its record holds its progress and its writer;
the process that holds its lease is its only writer. Every change of a record is a compare-and-set
on the document's sequence number, so a writer that was replaced learns it at its next save. Records
are read by id, in real time. `reindex` can rebuild all of it from the log.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from pgstream_dagster.errors import GenerationHeld, LeaseLost, SearchError
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.process_identity import has_ended, this_process
from pgstream_dagster.search.answers import Conflict, Json
from pgstream_dagster.search.cluster import Cluster
from pgstream_dagster.search.fields import Field

logger = logging.getLogger(__name__)

CONTROL: Final = "pgstream-control"
"""The index of records, one for all pipelines of a cluster."""

SETTINGS: Final = {"number_of_shards": 1, "auto_expand_replicas": "0-1"}
MAPPING: Final = {
    "dynamic": False,
    "properties": {name: {"type": "keyword"} for name in ("pipeline", "alias", "state")},
}

LEASE_SECONDS: Final = 20.0
"""Of silence, after which a writer counts as dead. Its own machine sees its end immediately."""


class State(StrEnum):
    """What a generation is to its alias."""

    BUILDING = "building"
    CATCHING_UP = "catching_up"
    PROMOTING = "promoting"  # the live one's writer releases it, so that the alias never moves to
    # an index that is behind it
    LIVE = "live"
    KEPT = "kept"
    RETIRING = "retiring"


@dataclass(frozen=True, slots=True)
class Generation:
    """
    The record of one generation.

    `delivered` is the watermark up to which every change is in the index. `copied_at` is the
    consistent point of the copy of `relation_id` that it began with. `outdated`: why a re-index is
    due, if it is; `is_closed`: changes are missing, and no more can be applied. `asked`: its
    definition in the pipeline file when it was built. `is_pinned`: a rollback chose it, so only a
    person moves the alias on. `modified`: the fingerprint of its modifiers. `log`: the change log
    that it follows; empty in records from before they had it.
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
    modified: str = ""
    log: str = ""
    created_at: float = field(default_factory=time.time)  # seconds since 1970

    @property
    def index(self) -> str:
        """The physical index."""
        return f"{self.alias}-{self.number:06d}"

    @property
    def was_live(self) -> bool:
        """Whether it is complete; also while a rollback promotes it, or if that was killed."""
        is_coming_back = self.state is State.PROMOTING and self.is_pinned
        return self.state in (State.LIVE, State.KEPT) or is_coming_back

    @property
    def writer(self) -> str:
        """The alias that only its writer uses, so that a write never re-creates a deleted index."""
        return f"{self.index}.writer"


@dataclass(frozen=True, slots=True)
class _Holder:
    name: str  # `this_process()`
    until: float  # seconds since 1970


def create(cluster: Cluster) -> None:
    """Create the control index unless it exists."""
    create_small(cluster, CONTROL, MAPPING)


def create_small(cluster: Cluster, index: str, mapping: Json) -> None:
    """Create a small index of our own unless it exists."""
    if not cluster.exists(index):
        cluster.create(index, {"settings": SETTINGS, "mappings": mapping})


class Control:
    """The records of one alias of one pipeline."""

    def __init__(self, cluster: Cluster, pipeline: str, alias: str) -> None:
        self._cluster, self._prefix, self.alias = cluster, f"{pipeline}/{alias}", alias

    def generations(self) -> list[Generation]:
        """Every generation that is not retired, the newest last."""
        record = self._cluster.get(CONTROL, self._prefix)
        numbers: Sequence[int] = record["_source"]["generations"] if record else []
        ids = [self._id(number) for number in numbers]
        stored = self._cluster.sources(CONTROL, ids)
        return [_generation(json.loads(stored[id_].source)) for id_ in ids if id_ in stored]

    def generation(self, index: str) -> Generation | None:
        """The generation of an index; `None`: there is no record of it."""
        return next((g for g in self.generations() if g.index == index), None)

    def former(self, live_index: str) -> list[Generation]:
        """The generations that the alias was on before, the newest last."""
        return [g for g in self.generations() if g.was_live and g.index != live_index]

    def promoting(self) -> bool:
        """Whether a live process is about to move the alias."""
        return any(self._have_writers(State.PROMOTING))

    def is_written(self) -> bool | None:
        """Whether the live generation has a running writer; `None`: there is no live one."""
        live = self._have_writers(State.LIVE)
        return any(live) if live else None

    def _have_writers(self, state: State) -> list[bool]:
        """Per generation in this state, whether it has a running writer."""
        numbers = [g.number for g in self.generations() if g.state is state]
        records = [self._cluster.get(CONTROL, self._id(number)) for number in numbers]
        holders = [_holder(record["_source"]) for record in records if record is not None]
        return [holder is not None and _is_alive(holder) for holder in holders]

    def begin(self, generation: Generation) -> GenerationLease:
        """Record a new generation under the next number, held by this process."""

        def with_next(source: Json) -> Json:
            number = max(source["last"], *self._existing()) + 1
            return {**source, "last": number, "generations": [*source["generations"], number]}

        number = self._update(with_next)["last"]
        numbered = replace(generation, number=number)
        lease = GenerationLease(self._cluster, self._id(number), numbered, None)
        lease.save()
        return lease

    def _existing(self) -> list[int]:
        """Numbers of the indices that exist, and 0; the records may have been lost."""
        pattern = re.compile(re.escape(self.alias) + r"-(\d{6,})")
        indices = self._cluster.aliases(f"{self.alias}-*")
        return [0, *(int(match[1]) for index in indices if (match := pattern.fullmatch(index)))]

    def hold(self, number: int) -> GenerationLease:
        """
        Become the writer of a generation.

        Raises:
            GenerationHeld: another process is.
            LeaseLost: it was retired, or another process was faster.
        """
        record = self._cluster.get(CONTROL, self._id(number))
        if record is None:
            raise LeaseLost(f"{self.alias}-{number:06d}")
        generation, holder = _generation(record["_source"]), _holder(record["_source"])
        if holder is not None and _is_alive(holder):
            raise GenerationHeld(generation.index, holder.name)
        lease = GenerationLease(self._cluster, self._id(number), generation, record)
        lease.save()
        return lease

    def forget(self, lease: GenerationLease) -> None:
        """Remove the record of a generation whose index is gone."""
        number = lease.generation.number
        lease.release()

        def without(source: Json) -> Json:
            return {**source, "generations": [n for n in source["generations"] if n != number]}

        self._update(without)
        self._cluster.delete(CONTROL, self._id(number))

    def _update(self, change: Callable[[Json], Json]) -> Json:
        """Change the alias's record, which numbers its generations; again after a conflict."""
        while True:
            record = self._cluster.get(CONTROL, self._prefix)
            source = change(record["_source"] if record else {"last": 0, "generations": []})
            with suppress(Conflict):
                self._cluster.put(CONTROL, self._prefix, source, over=record)
                return source

    def _id(self, number: int) -> str:
        return f"{self._prefix}/{number}"


class GenerationLease:
    """The right to write to one generation; one thread uses it, `save` renews it."""

    def __init__(
        self, cluster: Cluster, document: str, generation: Generation, record: Json | None
    ) -> None:
        self.generation = generation
        self._cluster, self._document, self._record = cluster, document, record
        self._until = 0.0  # by this process's own clock

    def save(self, **changes: Any) -> None:
        """
        Write the record, with `changes` of the generation, and renew the lease.

        Raises:
            LeaseLost: another process holds it, or it is gone.
        """
        holder = _Holder(this_process(), time.time() + LEASE_SECONDS)
        self._write(replace(self.generation, **changes), holder)

    def keep(self) -> None:
        """Save if a third of the lease is over; before slow work, and between its parts."""
        if self._until - time.monotonic() < LEASE_SECONDS * 2 / 3:
            self.save()

    def require(self) -> None:
        """Before every write to the index: ensure that no other process has become its writer."""
        if time.monotonic() > self._until:
            self.save()  # this process slept: the compare-and-set fails if it was replaced

    def release(self, **changes: Any) -> None:
        """Save, and leave the generation to the next writer."""
        self._write(replace(self.generation, **changes), None)
        self._until = 0.0

    def leave(self) -> LeaseLost | None:
        """Release it after an error; returns `LeaseLost` if another process has it already."""
        try:
            self.release()
        except SearchError as error:
            logger.warning("%s is released when its lease ends: %s", self.generation.index, error)
            return error if isinstance(error, LeaseLost) else None
        return None

    def _write(self, generation: Generation, holder: _Holder | None) -> None:
        source: Json = msgspec.to_builtins(generation, enc_hook=str)  # an LSN as its text
        source["holder"] = None if holder is None else asdict(holder)
        requested_at = time.monotonic()
        try:
            self._record = self._cluster.put(CONTROL, self._document, source, over=self._record)
        except Conflict as error:
            raise LeaseLost(generation.index) from error
        self.generation = generation
        self._until = requested_at + LEASE_SECONDS


def _generation(source: Mapping[str, Any]) -> Generation:
    return msgspec.convert(source, Generation, dec_hook=_lsn)


def _lsn(_type: type, text: str) -> Lsn:
    return Lsn.parse(text)


def _holder(source: Mapping[str, Any]) -> _Holder | None:
    return None if source["holder"] is None else _Holder(**source["holder"])


def _is_alive(holder: _Holder) -> bool:
    """Until its lease ends, or its process is known to have ended."""
    return holder.until > time.time() and not has_ended(holder.name)
