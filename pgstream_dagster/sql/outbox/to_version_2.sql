-- From version 1 to 2. Several statements; no row.
alter table pgstream.outbox_version add column if not exists home text;

alter table pgstream.outbox_sinks
add column if not exists log_id text,
add column if not exists generation integer,
add column if not exists delivered_before pg_snapshot,
add column if not exists pending_snapshot pg_snapshot,
add column if not exists pending_lsn pg_lsn;

drop function if exists pgstream.cannot_fail(pgstream.subscriptions);

drop function if exists pgstream.image_code(text, text [])
