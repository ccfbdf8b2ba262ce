"""
Leave nothing on the source: drop the slot, and what else of it is ours. The lake stays.

The publication stays if it was made by hand, the event triggers while another pipeline uses them.

Safe to run again, and after a crash at any moment: what is gone is skipped. The source must be the
one that was set up, so that a DSN of another server drops no slot there.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass

from pgstream_dagster.changelog.ledger import IDENTITY, TORN_DOWN, Ledger
from pgstream_dagster.delta import jvm
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source import publication, schema_triggers, slot
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.identity import identify, require_system
from pgstream_dagster.state_folder import require_no_stream


@dataclass(frozen=True, slots=True)
class TornDown:
    """
    What was dropped. A publication made by hand stays: `publication_kept`.

    `schema_triggers_dropped` is false, too, where another pipeline of the database uses them.
    """

    slot: str
    publication: str
    slot_dropped: bool
    publication_dropped: bool
    publication_kept: bool
    schema_triggers_dropped: bool


@named
def teardown(pipeline: Pipeline) -> TornDown:
    """
    Drop the pipeline's slot, publication and event triggers; the log keeps what it has.

    A later `setup` makes them again, and the log records what is missing.

    Raises:
        SlotInUse: a stream runs; stop it first.
        StreamRunning: one waits to connect again.
        SlotForeign: the slot is not one that we could have made.
        OtherSystem: the server is not the one that was set up.
        AccessRefused: another role installed the event triggers.
        LocksHeld: a transaction that ran DDL is still open; all else was dropped.
    """
    pipeline.require_postgres("teardown")
    with closing(Ledger(pipeline.lake, jvm.gateway(pipeline.jvm))) as ledger:
        identity = ledger.identity(pipeline.name)
        if identity is not None:  # on whatever timeline: a server that was restored, too
            require_system(identify(pipeline.dsn), identity.system_id, identity.database)
        source = identity or pipeline.config.source
        slot_name, publication_name = source.slot, source.publication
        with closing(connect(pipeline.dsn)) as session:
            # The server process of a stream that was just killed may still hold the slot.
            slot.take_over(session, slot_name)
            require_no_stream(pipeline)
            # The slot first: without its publication a stream would end with a misleading error.
            slot_dropped = slot.drop(session, slot_name, missing_ok=True)
            dropped = publication.drop(session, publication_name)
            kept = publication.inspect(session, publication_name) is not None
            untriggered = schema_triggers.remove(session, slot_name)
        done = TornDown(slot_name, publication_name, slot_dropped, dropped, kept, untriggered)
        if identity is not None and not ledger.is_torn_down:
            identities = len(ledger.facts(IDENTITY))
            ledger.record(TORN_DOWN, identity.epoch, asdict(done) | {"identities": identities})
    return done
