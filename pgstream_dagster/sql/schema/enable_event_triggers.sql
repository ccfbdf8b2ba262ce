-- Enable the event triggers, which somebody has disabled. Several statements; no row.
alter event trigger pgstream_schema_ddl enable always;

alter event trigger pgstream_schema_drop enable always
