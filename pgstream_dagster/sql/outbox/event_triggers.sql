-- The event triggers, which only a superuser may make. Several statements; no row.
drop event trigger if exists pgstream_outbox_ddl;

drop event trigger if exists pgstream_outbox_drop;

create event trigger pgstream_outbox_ddl on ddl_command_end
when tag in (
    'ALTER TABLE', 'ALTER SCHEMA', 'CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'CREATE SCHEMA'
)
execute function pgstream.after_ddl();

create event trigger pgstream_outbox_drop on sql_drop
when tag in ('DROP TABLE', 'DROP SCHEMA', 'DROP OWNED', 'DROP EXTENSION')
execute function pgstream.after_ddl();
