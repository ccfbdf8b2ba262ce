-- The streams: what a sink delivers is one of them. No row.
create table if not exists pgstream.streams (
    id bigint primary key,
    name text,
    created_at timestamptz not null default pg_catalog.clock_timestamp()
);

comment on table pgstream.streams is
'Streams of events; deleting one deletes its subscriptions'
