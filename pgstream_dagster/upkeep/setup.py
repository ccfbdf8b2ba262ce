"""
Set a pipeline up: publication, slot, first watermark, a copy of every table.

Idempotent: a step that is done is not repeated, and a crash at any moment leaves a state from
which the next run continues. Once the watermark exists the stream may run, whether or not tables
are still to be copied.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.capture.reporting import ReportedSince
from pgstream_dagster.changelog import table_specs
from pgstream_dagster.changelog.consumed import EPOCH, FIRST_WATERMARK
from pgstream_dagster.changelog.ledger import Ledger, PipelineIdentity
from pgstream_dagster.changelog.log import ChangeLog
from pgstream_dagster.consumer.origin import KAFKA, require_kafka
from pgstream_dagster.copy.copying import Copied, Copier, OnProgress, only_copier, silent
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import (
    OtherSystem,
    PublicationMissing,
    SetUpOtherwise,
    SlotForeign,
    SlotInUse,
    WriterReplaced,
)
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.schema.changes import FIRST_EPOCH
from pgstream_dagster.source import publication, slot
from pgstream_dagster.source.identity import SystemIdentity, identify
from pgstream_dagster.source.interrupt import Session, session
from pgstream_dagster.source.origin import adopt, require_same
from pgstream_dagster.source.preflight import preflight, require
from pgstream_dagster.source.prepare import publish
from pgstream_dagster.stop import Stop
from pgstream_dagster.upkeep.fitting import require_fitting_source
from pgstream_dagster.upkeep.outbox_sinks import carry_over
from pgstream_dagster.upkeep.resnapshot import resnapshot

logger = logging.getLogger(__name__)

BEGUN: Final = "setup"
"""Kind of the ledger's fact that this pipeline is about to make a slot: a slot of that name without
a watermark is then ours, and was never read."""

NO_LAKE: Final = "a stream read it into a lake that is not at {0!r} now, maybe not mounted"

SLOT_FREE_SECONDS: Final = 15.0
"""How long a slot may be in use by the server process of a `setup` that was just killed."""


@named
def setup(
    pipeline: Pipeline, *, on_progress: OnProgress = silent, stop: Stop | None = None
) -> list[Copied]:
    """
    Make what is missing of publication, slot and watermark, and copy every table that has no copy.

    The run that makes the slot copies all tables from the slot's own snapshot; later runs copy from
    later snapshots. Waits while another process copies. After a `teardown` of the same source it is
    a `resnapshot`: the log continues after the gap, and every table is copied.

    Raises:
        PreflightFailed: the source is not ready.
        MissingSetting, InvalidSetting: a secret of `source.modifiers`.
        RulesRefused, NewColumn: they do not fit a table.
        SetUpOtherwise, OtherSystem, TimelineForked, SourceBehind, SourceRestored: the log belongs
            to another source, slot or publication.
        PublicationMissing, SlotMissing, SlotLost, SlotAhead: it was set up, and broke since.
        SlotForeign: a slot of that name exists of which this lake has no record.
        PgstreamError: a table could not be copied; the others are.
        Cancelled: asked to stop; what is done stays, and the next run continues from there.
    """
    stop = stop or Stop()
    if pipeline.config.source.kafka is not None:
        begin_on_kafka(pipeline)
        return []
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
        identity = ledger.identity(pipeline.name)
        watermark = None if identity is None else log.watermark(identity.epoch)
        is_interrupted = ledger.is_in_repair  # a resnapshot, perhaps before its first commit
        if identity is None or (watermark is None and not is_interrupted):
            carry_over(pipeline)
            return work.begin()
        if watermark is not None and not (ledger.is_torn_down or is_interrupted):
            return work.go_on(identity, watermark)
        require_same(pipeline, ledger, identity, watermark or Lsn(0))
    return resnapshot(pipeline, on_progress=on_progress, stop=stop)


def begin_on_kafka(pipeline: Pipeline) -> None:
    """
    Make the tables of a lake whose changes come from Kafka; idempotent.

    Raises:
        SetUpOtherwise: the lake has the changes of a Postgres source.
    """
    gateway = jvm.gateway(pipeline.jvm)
    table_specs.create(pipeline.lake, gateway)
    with (
        closing(Ledger(pipeline.lake, gateway)) as ledger,
        closing(ChangeLog(pipeline.lake, pipeline.name, gateway)) as log,
    ):
        identity = ledger.identity(pipeline.name)
        if identity is None:
            ledger.record_identity(PipelineIdentity(pipeline.name, KAFKA, "", "", "", EPOCH, 0))
        else:
            require_kafka(identity)
        reach("setup.identity")
        if log.watermark(EPOCH) is None:
            with suppress(WriterReplaced):  # another process did
                log.start(EPOCH, FIRST_WATERMARK)


def _require_ready(pipeline: Pipeline, stop: Stop) -> None:
    """Refuse a source that is not ready before a JVM starts, and leave nothing behind."""
    source = pipeline.config.source
    with session(pipeline.dsn, stop) as catalog:
        rules = pipeline.source_rules()
        if pipeline.lake.is_made:
            return
        require(preflight(catalog, source))
        require_fitting_source(rules, catalog, source)
        if slot.inspect(catalog, source.slot) is not None:
            had_stream = pipeline.heartbeat_file.exists()
            fact = NO_LAKE.format(pipeline.lake.root) if had_stream else slot.NO_RECORD
            raise SlotForeign(source.slot, fact)


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
        ReportedSince(self.ledger, FIRST_EPOCH, self.session).position()
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

    def go_on(self, identity: PipelineIdentity, watermark: Lsn) -> list[Copied]:
        """Check that the stream can still run, and copy the tables that are left."""
        self._require_unchanged(identity)
        adopt(self.pipeline, self.ledger, identity, watermark)
        if publication.inspect(self.session, identity.publication) is None:
            raise PublicationMissing(identity.publication)
        try:
            slot.resume_lsn(self.session, identity.slot, watermark)
        except SlotInUse as stream:
            logger.info("slot %r is read by server process %d", identity.slot, stream.active_pid)
        publish(self.pipeline, self.session)
        with self._copier(identity.epoch, identity.publication) as copier:
            return copier.copy(copier.without_copy())

    def _copier(self, epoch: int, publication_name: str) -> Copier:
        return Copier(
            self.pipeline,
            self.ledger,
            self.log,
            epoch=epoch,
            publication=publication_name,
            on_progress=self.on_progress,
            stop=self.stop,
        )

    def _require_unchanged(self, identity: PipelineIdentity) -> None:
        """The stream reads what was set up; a file that names another must not be ignored."""
        source = self.pipeline.config.source
        for what, now, then in (
            ("source.slot", source.slot, identity.slot),
            ("source.publication", source.publication, identity.publication),
        ):
            if now != then:
                raise SetUpOtherwise(self.pipeline.name, what, then, now)

    def _forget_unread_slot(self, name: str, system: SystemIdentity) -> None:
        """Drop the slot of a `setup` that ended before its watermark; refuse any other slot."""
        begun = [facts for _, facts in self.ledger.facts(BEGUN)]
        last = begun[-1] if begun else {}
        if last and last["system_id"] != system.system_id:
            raise OtherSystem("the system identifier", last["system_id"], system.system_id)
        if slot.inspect(self.session, name) is None:
            return
        if (last.get("slot"), last.get("database")) != (name, system.database):
            raise SlotForeign(name, slot.NO_RECORD)
        self._drop_unread(name)

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
