-- The events. No row. Applications may insert their own. No foreign key to streams: it would lock
-- a row of streams for each event.
create table if not exists pgstream.events (
    id uuid not null default pgstream.uuid_v7(),
    stream_id bigint not null,
    payload jsonb not null,
    metadata jsonb,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    xid xid8 not null default pg_catalog.pg_current_xact_id(),
    primary key (created_at, id)
) partition by range (created_at);

comment on table pgstream.events is
'Events of subscriptions and applications, a partition for each day (UTC)'
