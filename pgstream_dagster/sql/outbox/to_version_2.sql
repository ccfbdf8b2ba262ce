-- From version 1 to 2. Several statements; no row.
alter table pgstream.outbox_version add column if not exists home text;

drop function if exists pgstream.cannot_fail(pgstream.subscriptions)
