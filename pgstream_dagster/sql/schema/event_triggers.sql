-- The event triggers, for which most servers want a superuser. Several statements; no row.
-- The tags are those of commands that can change a table, or the name or labels of a type. Objects
-- may be dropped by any command: the drop of a type takes columns with it.
-- Enabled always: a session with session_replication_role = replica runs DDL, too.
drop event trigger if exists pgstream_schema_ddl;

drop event trigger if exists pgstream_schema_drop;

create event trigger pgstream_schema_ddl on ddl_command_end
when tag in (
    'CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE', 'ALTER INDEX',
    'CREATE SCHEMA', 'ALTER SCHEMA', 'ALTER TYPE', 'ALTER DOMAIN', 'COMMENT',
    'CREATE EXTENSION', 'ALTER EXTENSION'
)
execute function pgstream.ddl_trigger();

create event trigger pgstream_schema_drop on sql_drop
execute function pgstream.ddl_trigger();

alter event trigger pgstream_schema_ddl enable always;

alter event trigger pgstream_schema_drop enable always
