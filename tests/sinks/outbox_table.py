"""The table of events, as `pgstream outbox install` makes it."""

from __future__ import annotations

EVENTS = """
create table pgstream.events (
    id uuid not null default gen_random_uuid(), stream_id bigint not null,
    payload jsonb not null, metadata jsonb,
    created_at timestamptz not null default clock_timestamp(),
    xid xid8 not null default pg_current_xact_id(), primary key (created_at, id)
) partition by range (created_at)
"""
TABLES = (
    "create schema pgstream",
    EVENTS,
    "create table pgstream.events_default partition of pgstream.events default",
)
