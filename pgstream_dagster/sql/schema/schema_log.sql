-- The readable history of the source's schemas. No row.
-- Unlogged: so no publication FOR ALL TABLES has it, and it costs no WAL. A crash of the server
-- empties it and its numbers begin again; the lake's own schema_log is the history that lasts.
-- No unique constraint: two sessions that run DDL must never wait for each other. Nor for VACUUM,
-- which locks a table against writers while it gives pages at its end back.
create unlogged table if not exists pgstream.schema_log (
    version bigint not null generated always as identity,
    schema_name text not null,
    schema jsonb not null,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    acked boolean not null default false
) with (vacuum_truncate = off, toast.vacuum_truncate = off);

create index if not exists schema_log_of_schema on pgstream.schema_log (schema_name, version);

create index if not exists schema_log_not_acked on pgstream.schema_log (version) where not acked;

comment on table pgstream.schema_log is
'What each command of DDL made of the tables of a schema; written by event triggers of pgstream'
