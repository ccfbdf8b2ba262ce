-- What install has to know. One row: tables of schema pgstream that are not of this outbox, whether
-- the role is a superuser, whether the event triggers are there, the role, and who owns the schema
-- if somebody else does.
select
    array(
        select pg_catalog.format('%I.%I', n.nspname, c.relname)
        from pg_catalog.pg_class as c
        inner join pg_catalog.pg_namespace as n on c.relnamespace = n.oid
        where
            n.nspname = 'pgstream' and c.relname in ('subscriptions', 'events', 'streams')
            and pg_catalog.to_regclass('pgstream.outbox_version') is null
        order by c.relname
    ) as foreign_tables,
    (
        select r.rolsuper
        from pg_catalog.pg_roles as r
        where r.rolname = current_user
    ) as is_superuser,
    (
        select count(*) = 2
        from pg_catalog.pg_event_trigger as e
        where e.evtname in ('pgstream_outbox_ddl', 'pgstream_outbox_drop')
    ) as has_event_triggers,
    current_user::text as role_name,
    (
        select pg_catalog.pg_get_userbyid(n.nspowner)::text
        from pg_catalog.pg_namespace as n
        where
            n.nspname = 'pgstream'
            and pg_catalog.pg_get_userbyid(n.nspowner) <> current_user
    ) as other_owner
