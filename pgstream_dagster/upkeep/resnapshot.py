"""
Repair a pipeline whose slot or source is lost: a new slot, a gap, every table copied again.

What the log holds stays. Changes between the old watermark and the new slot's consistent point are
missing, and the log records that: one `gap` row per relation in the log, in the commit that moves
the watermark there. Readers skip a relation from its gap to its next copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final

from pgstream_dagster.capture.due import due_copies, request_copy, requested_copies
from pgstream_dagster.changelog import markers
from pgstream_dagster.changelog.ledger import REPAIR_BEGUN, REPAIR_ENDED, PipelineIdentity
from pgstream_dagster.copy.copying import Copied, Copier, OnProgress, only_copier, silent
from pgstream_dagster.errors import (
    OtherSystem,
    SlotAhead,
    SlotForeign,
    SlotLost,
    SlotMissing,
    SourceBehind,
    SourceRestored,
    TimelineForked,
)
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source import slot
from pgstream_dagster.source.identity import identify
from pgstream_dagster.source.interrupt import Session, session
from pgstream_dagster.source.origin import adopt, require_same
from pgstream_dagster.source.preflight import read_facts, read_server
from pgstream_dagster.source.prepare import publish
from pgstream_dagster.source.snapshot import Snapshot
from pgstream_dagster.state_folder import require_no_stream
from pgstream_dagster.stop import Stop
from pgstream_dagster.upkeep.fitting import require_fitting

logger = logging.getLogger(__name__)

OTHER_SOURCE: Final = (OtherSystem, TimelineForked, SourceBehind, SourceRestored)
"""Errors of a source whose history does not hold our watermark."""

GAP: Final = "its changes before the new slot are missing"


@named
def resnapshot(
    pipeline: Pipeline, *, on_progress: OnProgress = silent, stop: Stop | None = None
) -> list[Copied]:
    """
    Make a new slot, land the gap it leaves, and copy every table.

    A repair that was interrupted after its gap continues with the tables that are left; one before
    its gap begins again. The stream must not run. Another source (system, database, or a history
    without our watermark) starts a new epoch.

    Raises:
        NotSetUp: `setup` was never run.
        StreamRunning, SlotInUse: the stream runs; stop it first.
        SlotForeign: the new source has a slot of that name which is not ours.
        PreflightFailed: the source is not ready.
        MissingSetting, InvalidSetting: a secret of `source.modifiers`.
        RulesRefused, NewColumn: they do not fit a table of another source.
        Cancelled: asked to stop; the next run continues.
    """
    pipeline.require_postgres("resnapshot")
    stop = stop or Stop()
    pipeline.source_rules()  # before anything changes
    require_no_stream(pipeline)
    with pipeline.open() as opened:
        identity, ledger, watermark = opened.identity, opened.ledger, opened.watermark()
        if not ledger.is_in_repair:
            opened.require_watermark()
        with (
            only_copier(pipeline, wait=True, on_progress=on_progress, stop=stop),
            session(pipeline.dsn, stop) as catalog,
        ):
            repair = _Repair(opened, catalog, on_progress, stop)
            if watermark is None:  # an earlier run recorded the new epoch and got no further
                return repair.begin(identity, Lsn(0))
            if ledger.is_in_repair and repair.is_sound(identity, watermark):
                return repair.go_on(identity)
            return repair.begin(identity, watermark)


@dataclass(frozen=True, slots=True)
class _Repair:
    """One run of `resnapshot`."""

    opened: OpenPipeline
    session: Session
    on_progress: OnProgress
    stop: Stop

    def is_sound(self, identity: PipelineIdentity, watermark: Lsn) -> bool:
        """Whether the slot can stream from the watermark, so that only copies are left."""
        try:
            adopt(self.opened.pipeline, self.opened.ledger, identity, watermark)
            slot.resume_lsn(self.session, identity.slot, watermark)
        except (*OTHER_SOURCE, SlotMissing, SlotLost, SlotAhead, SlotForeign):
            return False
        return True

    def begin(self, old: PipelineIdentity, watermark: Lsn) -> list[Copied]:
        """New slot, gap and watermark in one commit, then the copies from the slot's snapshot."""
        pipeline = self.opened.pipeline
        new = self._identity(old, watermark)
        if self.opened.log.watermark(new.epoch) is None:
            self._require_fitting(new.epoch)
        publish(pipeline, self.session)
        self._drop_slot(old, new)
        if not self.opened.ledger.is_in_repair:
            self.opened.ledger.record(REPAIR_BEGUN, new.epoch, asdict(new))
        copier = self._copier(new)
        with copier, copier.exported(slot=new.slot) as snapshot:
            point = snapshot.consistent_point
            published = [table.relation_id for table in copier.tables()]
            request_copy(self.opened.ledger, new.epoch, published, point, GAP)
            self.opened.ledger.record_identity(new)
            self._land_gap(new, snapshot, published)
            logger.info("slot %r streams from %s on", new.slot, point)
            copied = copier.copy(published, snapshot)
        self.opened.ledger.record(REPAIR_ENDED, new.epoch, {"consistent_point": str(point)})
        return copied

    def _require_fitting(self, epoch: int) -> None:
        """In a new epoch a rule follows no table from its former name."""
        source = self.opened.pipeline.config.source
        facts = read_facts(self.session, source, read_server(self.session, source))
        rules = self.opened.pipeline.source_rules()
        require_fitting(rules, self.session, facts.scope, epoch)

    def go_on(self, identity: PipelineIdentity) -> list[Copied]:
        """Copy the tables that are left, from a later snapshot."""
        ledger, epoch = self.opened.ledger, identity.epoch
        with self._copier(identity) as copier:
            due = due_copies(copier.tables(), ledger.copies(epoch), requested_copies(ledger, epoch))
            copied = copier.copy(list(due))
        ledger.record(REPAIR_ENDED, epoch, {"tables": [copy.table for copy in copied]})
        return copied

    def _copier(self, identity: PipelineIdentity) -> Copier:
        return Copier(
            self.opened.pipeline,
            self.opened.ledger,
            self.opened.log,
            epoch=identity.epoch,
            publication=identity.publication,
            on_progress=self.on_progress,
            stop=self.stop,
        )

    def _identity(self, old: PipelineIdentity, watermark: Lsn) -> PipelineIdentity:
        """The source as it is now: the same epoch if its history holds our watermark."""
        system = identify(self.opened.pipeline.dsn)
        source = self.opened.pipeline.config.source
        epoch = old.epoch
        try:
            require_same(self.opened.pipeline, self.opened.ledger, old, watermark)
        except OTHER_SOURCE as error:
            logger.warning("%s; epoch %d begins", error, epoch + 1)
            epoch += 1
        return replace(
            old,
            system_id=system.system_id,
            database=system.database,
            timeline=system.timeline,
            slot=source.slot,
            publication=source.publication,
            epoch=epoch,
        )

    def _drop_slot(self, old: PipelineIdentity, new: PipelineIdentity) -> None:
        """Drop our slot on this server; refuse one of which the ledger has no record."""
        if slot.inspect(self.session, new.slot) is None:
            return
        ours = [asdict(old), *(facts for _, facts in self.opened.ledger.facts(REPAIR_BEGUN))]
        ours_now = {"slot": new.slot, "system_id": new.system_id, "database": new.database}
        if not any(ours_now.items() <= facts.items() for facts in ours):
            raise SlotForeign(new.slot, slot.NO_RECORD)
        slot.drop(self.session, new.slot, missing_ok=True)

    def _land_gap(self, new: PipelineIdentity, snapshot: Snapshot, published: list[int]) -> None:
        """One commit: what is missing, what ends, and the watermark at the new slot's start."""
        schemas = self.opened.schema_log.all()
        point, taken_at_us = snapshot.consistent_point, snapshot.taken_at_us
        if self.opened.log.watermark(new.epoch) is None:
            self.opened.ledger.record_lost(new.epoch, Lsn(0), point)
            before = _newest(schemas, new.epoch - 1)
            rows = [markers.drop(schema, new.epoch, point, taken_at_us) for schema in before]
            self.opened.log.start(new.epoch, point, markers.rows_table(rows))
            return
        published_now = set(published)
        rows = [
            markers.gap(schema, point, taken_at_us)
            if schema.relation_id in published_now
            else markers.drop(schema, new.epoch, point, taken_at_us)
            for schema in _newest(schemas, new.epoch)
        ]
        writer = self.opened.log.writer(new.epoch)
        try:
            self.opened.ledger.record_lost(new.epoch, writer.watermark, point)
            writer.commit([markers.rows_table(rows)], point)
        finally:
            writer.close()


def _newest(schemas: Iterable[TableSchema], epoch: int) -> list[TableSchema]:
    """The newest version of each relation of an epoch."""
    return list({s.relation_id: s for s in schemas if s.epoch == epoch}.values())
