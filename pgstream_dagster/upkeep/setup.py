"""
Set a pipeline up: publication, slot, first watermark, a copy of every table.

Safe to run again at any time: a step that is done is not done again, and a crash at any moment
leaves a state that the next run goes on from. Once the watermark is there the stream may run,
whether or not tables are still to be copied.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.changelog import table_specs
from pgstream_dagster.changelog.ledger import Ledger, PipelineIdentity
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.copy.copying import Copied, Copier, OnProgress, only_copier, silent
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import (
    OtherSystem,
    PublicationMissing,
    SetUpOtherwise,
    SlotForeign,
    SlotInUse,
)
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source import publication, slot
from pgstream_dagster.source.identity import SystemIdentity, identify
from pgstream_dagster.source.interrupt import Session, session
from pgstream_dagster.source.origin import adopt, require_same
from pgstream_dagster.source.preflight import require
from pgstream_dagster.source.prepare import inspect, publish
from pgstream_dagster.stop import Stop
from pgstream_dagster.upkeep.resnapshot import is_open, resnapshot
from pgstream_dagster.upkeep.teardown import is_torn_down

logger = logging.getLogger(__name__)

FIRST_EPOCH: Final = 1

BEGUN: Final = "setup"
"""Kind of the ledger's fact that this pipeline is about to make a slot: one of that name which is
found without a watermark is then ours, and was never read."""

NO_LAKE: Final = "a stream read it into a lake that is not at {0!r} now, maybe not mounted"

NO_RECORD: Final = "it exists, and this lake has no record of it"

SLOT_FREE_SECONDS: Final = 15.0
"""How long a slot may be in use by the server process of a `setup` that was just killed."""


@named
def setup(
    pipeline: Pipeline, *, on_progress: OnProgress = silent, stop: Stop | None = None
) -> list[Copied]:
    """
    Make what is missing of publication, slot and watermark, and copy every table that has no copy.

    All tables copied by the run that makes the slot are of the slot's own snapshot; those that a
    later run copies, of later ones. Waits while another process copies. After a `teardown` of the
    same source it is a `resnapshot`: the log goes on behind the gap, and every table is copied.

    Raises:
        PreflightFailed: the source is not ready.
        SetUpOtherwise, OtherSystem, TimelineForked, SourceBehind, SourceRestored: the log is of
            something else.
        PublicationMissing, SlotMissing, SlotLost, SlotAhead: it was set up, and broke since.
        SlotForeign: a slot of that name exists that this lake knows nothing of.
        PgstreamError: a table could not be copied; the others are.
        Cancelled: asked to stop; what is done stays, and the next run goes on from there.
    """
    stop = stop or Stop()
    _require_ready(pipeline, stop)
    gateway = jvm.gateway(pipeline.jvm)
    table_specs.create(pipeline.lake, gateway)
    with (
        only_copier(pipeline, wait=True, on_progress=on_progress, stop=stop),
        session(pipeline.dsn, stop) as catalog,
        closing(Ledger(pipeline.lake, gateway)) as ledger,
        closing(ChangeLog(pipeline.lake, pipeline.name, gateway)) as log,
    ):
        work = _Setup(pipeline, catalog, ledger, log, on_progress, stop)
        known = ledger.identity(pipeline.name)
        watermark = None if known is None else log.watermark(known.epoch)
        is_broken_off = is_open(ledger)  # a resnapshot, perhaps before its first commit
        if known is None or (watermark is None and not is_broken_off):
            return work.begin()
        if watermark is not None and not (is_torn_down(ledger) or is_broken_off):
            return work.go_on(known, watermark)
        require_same(pipeline, ledger, known, watermark or Lsn(0))
    return resnapshot(pipeline, on_progress=on_progress, stop=stop)


def _require_ready(pipeline: Pipeline, stop: Stop) -> None:
    """What is wrong with the source is told before a JVM starts, and leaves nothing behind."""
    with session(pipeline.dsn, stop) as catalog:
        if pipeline.lake.is_made:
            return
        require(inspect(pipeline, catalog))
        if slot.inspect(catalog, pipeline.config.source.slot) is not None:
            was_there = pipeline.heartbeat_file.exists()
            fact = NO_LAKE.format(pipeline.lake.root) if was_there else NO_RECORD
            raise SlotForeign(pipeline.config.source.slot, fact)


@dataclass(frozen=True, slots=True)
class _Setup:
    """One run of `setup`."""

    pipeline: Pipeline
    session: Session
    ledger: Ledger
    log: ChangeLog
    on_progress: OnProgress
    stop: Stop

    def begin(self) -> list[Copied]:
        """Nothing was ever read: make everything, and copy all tables as of the slot's start."""
        publish(self.pipeline, self.session)
        reach("setup.publication")
        source, system = self.pipeline.config.source, identify(self.pipeline.dsn)
        self._forget_unread_slot(source.slot, system)
        begun = {"slot": source.slot, "system_id": system.system_id, "database": system.database}
        self.ledger.record(BEGUN, FIRST_EPOCH, begun)
        copier = self._copier(FIRST_EPOCH, source.publication)
        with copier, copier.exported(slot=source.slot) as snapshot:
            reach("setup.slot")
            self.ledger.record_identity(
                PipelineIdentity(
                    pipeline=self.pipeline.name,
                    system_id=system.system_id,
                    database=system.database,
                    slot=source.slot,
                    publication=source.publication,
                    epoch=FIRST_EPOCH,
                    timeline=system.timeline,
                )
            )
            reach("setup.identity")
            self.log.start(FIRST_EPOCH, snapshot.consistent_point)
            reach("setup.watermark")
            logger.info("slot %r streams from %s on", source.slot, snapshot.consistent_point)
            return copier.copy(copier.without_copy(), snapshot)

    def go_on(self, known: PipelineIdentity, watermark: Lsn) -> list[Copied]:
        """The stream can run: see that it still could, and copy the tables that are left."""
        self._require_unchanged(known)
        adopt(self.pipeline, self.ledger, known, watermark)
        if publication.inspect(self.session, known.publication) is None:
            raise PublicationMissing(known.publication)
        try:
            slot.resume_lsn(self.session, known.slot, watermark)
        except SlotInUse as stream:
            logger.info("slot %r is read by server process %d", known.slot, stream.active_pid)
        publish(self.pipeline, self.session)
        with self._copier(known.epoch, known.publication) as copier:
            return copier.copy(copier.without_copy())

    def _copier(self, epoch: int, publication_name: str) -> Copier:
        return Copier(
            self.pipeline,
            epoch=epoch,
            publication=publication_name,
            on_progress=self.on_progress,
            stop=self.stop,
        )

    def _require_unchanged(self, known: PipelineIdentity) -> None:
        """The stream reads what was set up; a file that names another must not be passed over."""
        source = self.pipeline.config.source
        for what, now, then in (
            ("source.slot", source.slot, known.slot),
            ("source.publication", source.publication, known.publication),
        ):
            if now != then:
                raise SetUpOtherwise(self.pipeline.name, what, then, now)

    def _forget_unread_slot(self, name: str, system: SystemIdentity) -> None:
        """Drop the slot of a `setup` that ended before its watermark; refuse anybody else's."""
        begun = [facts for _, facts in self.ledger.facts(BEGUN)]
        for facts in begun[-1:]:
            if facts["system_id"] != system.system_id:
                raise OtherSystem("the system identifier", facts["system_id"], system.system_id)
        if slot.inspect(self.session, name) is None:
            return
        if {"slot": name, "database": system.database}.items() <= (begun or [{}])[-1].items():
            self._drop_unread(name)
        else:
            raise SlotForeign(name, NO_RECORD)

    def _drop_unread(self, name: str) -> None:
        deadline = time.monotonic() + SLOT_FREE_SECONDS
        while True:
            try:
                slot.drop(self.session, name, missing_ok=True)
            except SlotInUse:
                if time.monotonic() > deadline:
                    raise
                self.stop.sleep(0.2)
            else:
                return
