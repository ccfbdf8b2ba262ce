-- The subscriptions. No row. The columns from `table_oid` on are set by triggers: which table is
-- meant, what its columns were called, and why the subscription is not in force.
create table if not exists pgstream.subscriptions (
    id uuid primary key default pgstream.uuid_v7(),
    key text not null check (key <> ''),
    stream_id bigint not null references pgstream.streams (id) on delete cascade,
    operation pgstream.operation_type not null,
    schema_name text not null,
    table_name text not null,
    when_clause text,
    column_names text[],
    metadata jsonb,
    payload_extensions jsonb,
    metadata_extensions jsonb,
    timing text not null default 'deferred' check (timing in ('deferred', 'immediate')),
    on_error text not null default 'null' check (on_error in ('null', 'fail')),
    is_enabled boolean not null default true,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    updated_at timestamptz not null default pg_catalog.clock_timestamp(),
    table_oid oid,
    column_numbers smallint[],
    known_columns jsonb,
    broken text,
    unique (stream_id, key, schema_name, table_name, operation)
);

create index if not exists subscriptions_table_oid on pgstream.subscriptions (table_oid);

comment on table pgstream.subscriptions is
'Which changes of which tables become events; any role that may write it acts as its owner'
