-- What the server and our role allow, one row. Settings that the server does not have are null,
-- and so are those that it shows only to members of pg_read_all_settings.
--   %(slot)s         text  name of the slot
--   %(publication)s  text  name of the publication
select
    pg_catalog.current_setting('server_version_num')::int as version,
    pg_catalog.current_setting('server_version') as version_text,
    pg_catalog.pg_is_in_recovery() as is_standby,
    pg_catalog.current_setting('wal_level') as wal_level,
    pg_catalog.current_setting('max_replication_slots')::int as slots,
    (select count(*)::int from pg_catalog.pg_replication_slots) as slots_taken,
    exists (
        select from pg_catalog.pg_replication_slots as s where s.slot_name = %(slot)s
    ) as has_slot,
    pg_catalog.current_setting('max_wal_senders')::int as senders,
    (select count(*)::int from pg_catalog.pg_stat_replication) as senders_taken,
    current_user::text as role,
    pg_catalog.quote_ident(current_user) as role_sql,
    pg_catalog.current_database()::text as database,
    pg_catalog.quote_ident(pg_catalog.current_database()) as database_sql,
    pg_catalog.quote_ident(%(publication)s) as publication_sql,
    r.rolsuper as is_superuser,
    r.rolreplication or r.rolsuper as may_replicate,
    pg_catalog.has_database_privilege(
        pg_catalog.current_database()::text, 'CREATE'
    ) as may_create,
    pg_catalog.current_setting('server_encoding') as encoding,
    pg_catalog.current_setting('max_slot_wal_keep_size') as wal_keep_size,
    pg_catalog.current_setting('synchronous_standby_names') as synchronous_names,
    pg_catalog.current_setting('idle_replication_slot_timeout', true) as idle_slot_timeout,
    (
        select s.setting from pg_catalog.pg_settings as s
        where s.name = 'output_plugin_libraries'
    ) as output_plugins
from pg_catalog.pg_roles as r
where r.rolname = current_user
