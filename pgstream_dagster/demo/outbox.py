"""
The demo's outbox: a subscription to late flights, delivered to Kafka by route and to a webhook.

The webhook's receiver is away for a while. Every event of the log must be at both in the end, at
least once, and first in the order of the commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Final, NamedTuple

import psycopg

from pgstream_dagster.config.outbox_sink import EVENTS_TABLE
from pgstream_dagster.demo.printing import problem
from pgstream_dagster.outbox.install import install
from pgstream_dagster.outbox.maintain import maintain
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.source.connect import connect
from pgstream_dagster.tables.read import read_changes

TOPICS: Final = "late."
"""How the topics begin that the events name."""

STREAM: Final = "insert into pgstream.streams (id, name) values (1, 'late flights')"

SUBSCRIBE: Final = """
insert into pgstream.subscriptions (
    key, stream_id, operation, schema_name, table_name, when_clause, column_names,
    payload_extensions, metadata_extensions
) values (
    'late', 1, 'UPDATE', 'public', 'flights',
    'new.dep_delay >= 30 and new.dep_delay > old.dep_delay', array['id', 'carrier', 'dep_delay'],
    %s, %s
)
"""

GROUP: Final = [{"json_path": "group_id", "expression": "new.carrier"}]
ROUTE: Final = [
    {
        "json_path": "topic",
        "expression": f"case when new.dep_delay >= 120 then '{TOPICS}much' else '{TOPICS}some' end",
    }
]


class Arrival(NamedTuple):
    """An event as a target got it, with its position in the order of the commits."""

    event_id: str
    group: str
    position: str


def subscribe(dsn: str) -> None:
    """Install the outbox on the source, and subscribe to flights that get late."""
    with closing(connect(dsn)) as session:
        install(session)
        maintain(session)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(STREAM)
        connection.execute(SUBSCRIBE, [json.dumps(GROUP), json.dumps(ROUTE)])


def event_ids(pipeline: Pipeline) -> set[str]:
    """The events that the log has; the source may have newer ones, as the stream has ended."""
    rows = read_changes(pipeline, EVENTS_TABLE).where("op in ('read', 'insert')")
    return {event_id for (event_id,) in rows.selectExpr("after['id']").collect()}


def compare(committed: set[str], arrivals: Sequence[Arrival]) -> tuple[str, str | None]:
    """What a target has of the events, and how that is not all of them in their order."""
    first = {arrival.event_id: arrival for arrival in reversed(arrivals)}
    disordered = sum(
        earlier.position > later.position
        for ordered in _by_group(arrivals, first).values()
        for earlier, later in pairwise(ordered)
    )
    problems = {
        "missing": len(committed - first.keys()),
        "that were not committed": len(first.keys() - committed),
        "out of order": disordered,
    }
    return f"{len(first):,} events in {len(arrivals):,} messages", problem(problems)


def _by_group(
    arrivals: Iterable[Arrival], first: Mapping[str, Arrival]
) -> dict[str, list[Arrival]]:
    """The first arrivals of each group's events, in the order in which they came."""
    groups: dict[str, list[Arrival]] = {}
    for arrival in _once(arrivals):
        groups.setdefault(arrival.group, []).append(first[arrival.event_id])
    return groups


def _once(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    seen = set[str]()
    for arrival in arrivals:
        if arrival.event_id not in seen:
            seen.add(arrival.event_id)
            yield arrival
