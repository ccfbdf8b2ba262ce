-- The version of the outbox's objects, in one row. No row. Who changes a subscription updates the
-- row first, so changes happen one after the other, and a stale snapshot is an error (40001). `home`:
-- the cluster and database that have noted days and sinks.
create table if not exists pgstream.outbox_version (
    is_only_row boolean primary key default true check (is_only_row),
    version integer not null,
    revision bigint not null default 0,
    home text
);

comment on table pgstream.outbox_version is
'Version of the outbox of pgstream; revision counts the changes of subscriptions'
