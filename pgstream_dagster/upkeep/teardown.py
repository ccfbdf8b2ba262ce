"""
Leave nothing on the source: drop the slot, and the publication if it is ours. The lake stays.

Safe to run again, and after a crash at any moment: what is gone is passed over. The source is
asked to be the one that was set up, so that a DSN of another server drops no slot there.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Final

from pgstream_dagster.changelog.ledger import IDENTITY, Ledger, PipelineIdentity
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import OtherSystem
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source import publication, slot
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.identity import identify

TORN_DOWN: Final = "teardown"
"""Kind of the ledger's fact that slot and publication were dropped on purpose; `identities` tells
how often the pipeline had been set up by then, so that no clock has to order the two."""


@dataclass(frozen=True, slots=True)
class TornDown:
    """What was there and is gone. A publication made by hand stays: `publication_kept`."""

    slot: str
    publication: str
    slot_dropped: bool
    publication_dropped: bool
    publication_kept: bool


@named
def teardown(pipeline: Pipeline) -> TornDown:
    """
    Drop the pipeline's slot and its publication; the log keeps everything up to its watermark.

    A later `setup` makes them again, and the log says what is missing.

    Raises:
        SlotInUse: a stream runs; stop it first.
        SlotForeign: the slot is not one that we could have made.
        OtherSystem: the server is not the one that was set up.
    """
    with closing(Ledger(pipeline.lake, jvm.gateway(pipeline.jvm))) as ledger:
        known = ledger.identity(pipeline.name)
        if known is not None:
            _require_same(pipeline, known)
        source = pipeline.config.source
        slot_name = known.slot if known else source.slot
        publication_name = known.publication if known else source.publication
        with closing(connect(pipeline.dsn)) as session:
            # The server process of a stream that was just killed may still hold the slot.
            slot.take_over(session, slot_name)
            # The slot first: without its publication a stream would end with a stranger error.
            slot_dropped = slot.drop(session, slot_name, missing_ok=True)
            dropped = publication.drop(session, publication_name)
            kept = publication.inspect(session, publication_name) is not None
        done = TornDown(slot_name, publication_name, slot_dropped, dropped, kept)
        if known is not None and not is_torn_down(ledger):
            identities = len(ledger.facts(IDENTITY))
            ledger.record(TORN_DOWN, known.epoch, asdict(done) | {"identities": identities})
    return done


def is_torn_down(ledger: Ledger) -> bool:
    """Whether the newest slot of the pipeline was dropped on purpose."""
    identities = len(ledger.facts(IDENTITY))
    return any(facts["identities"] == identities for _, facts in ledger.facts(TORN_DOWN))


def _require_same(pipeline: Pipeline, known: PipelineIdentity) -> None:
    """Not the timeline: a server that was restored is torn down, too."""
    found = identify(pipeline.dsn)
    if found.system_id != known.system_id:
        raise OtherSystem("the system identifier", known.system_id, found.system_id)
    if found.database != known.database:
        raise OtherSystem("the database", known.database, found.database)
