-- The table of subscriptions, with pgstream's columns and ours; a table that pgstream made gets ours
-- and keeps its rows. Several statements; no row. Names are qualified: `search_path` is empty.
create schema if not exists pgstream;

create table if not exists pgstream.webhook_subscriptions (
    url text,
    schema_name text,
    table_name text,
    event_types text[],
    primary key (url, schema_name, table_name)
);

alter table pgstream.webhook_subscriptions
add column if not exists disabled_at timestamptz,
add column if not exists disabled_reason text;

comment on table pgstream.webhook_subscriptions is
'Webhook subscriptions of pgstream: empty schema_name, table_name or event_types match everything';
