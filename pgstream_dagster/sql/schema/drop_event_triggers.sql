-- Remove the event triggers. Several statements; no row.
drop event trigger if exists pgstream_schema_ddl;

drop event trigger if exists pgstream_schema_drop
