"""Where an event of the outbox is in the log: by its id, as a person knows it."""

from __future__ import annotations

import re
from typing import Final

from pgstream_dagster.changelog.replay import relation_changes
from pgstream_dagster.config.outbox_sink import EVENTS_TABLE
from pgstream_dagster.delta import jvm
from pgstream_dagster.errors import NoSuchEvent
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import OpenPipeline
from pgstream_dagster.schema.changes import Op

_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def is_event_id(text: str) -> bool:
    """Whether a text is a UUID as Postgres writes it."""
    return _ID.fullmatch(text) is not None


def event_tables(opened: OpenPipeline) -> dict[int, Lsn]:
    """The relations that are the table of events, and where the newest copy of each is."""
    return {
        relation_id: copied_at
        for relation_id, (copied_at, versions) in opened.copied_relations().items()
        if versions[-1].full_name == EVENTS_TABLE
    }


def event_position(opened: OpenPipeline, event_id: str) -> str:
    """
    The commit of an event; `copy` for one that the log has only from the copy of its table.

    Raises:
        NoSuchEvent
    """
    spark, lake = jvm.spark(opened.pipeline.jvm), opened.pipeline.lake
    places = list[tuple[str, int]]()
    for relation_id in event_tables(opened):
        changes = relation_changes(spark, lake, opened.epoch, relation_id)
        of_event = changes.where(f"after['id'] = '{event_id.lower()}'")
        places += [(op, lsn) for op, lsn in of_event.select("op", "commit_lsn").collect()]
    if not places:
        raise NoSuchEvent(event_id)
    inserted = [lsn for op, lsn in places if op == Op.INSERT]
    return str(Lsn(min(inserted))) if inserted else "copy"
