-- What is installed, and what the role may do about it. One row.
--   %(functions)s  text[]  names of the functions
-- `record` is the comment on an event trigger, where version and readers are kept: comments survive a
-- crash, unlogged tables do not. `versions`: oid and xmin of the event triggers and functions, by oid:
-- what was changed and changed back has another one. `missing`: objects that are not there.
-- `has_other_log`: a table of that name which is not ours, such as that of xata's pgstream; ours is
-- unlogged.
select
    pg_catalog.obj_description(ddl.oid, 'pg_event_trigger') as record,
    ddl.evtenabled is not null and ddl.evtenabled = 'A'
    and dropping.evtenabled is not null and dropping.evtenabled = 'A'
    and not exists (
        select from pg_catalog.pg_proc as p
        where
            p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace
            and p.proname = 'pg_logical_emit_message'
            and not pg_catalog.has_function_privilege(n.nspowner, p.oid, 'EXECUTE')
    ) as is_enabled,
    array(
        select object.version
        from (
            select e.oid, 1 as place, e.oid::bigint as version
            from pg_catalog.pg_event_trigger as e
            where e.oid in (ddl.oid, dropping.oid)
            union all
            select e.oid, 2, e.xmin::text::bigint
            from pg_catalog.pg_event_trigger as e
            where e.oid in (ddl.oid, dropping.oid)
            union all
            select p.oid, 1, p.oid::bigint
            from pg_catalog.pg_proc as p
            where p.pronamespace = n.oid and p.proname = any(%(functions)s)
            union all
            select p.oid, 2, p.xmin::text::bigint
            from pg_catalog.pg_proc as p
            where p.pronamespace = n.oid and p.proname = any(%(functions)s)
            union all
            select p.oid, 2, p.xmin::text::bigint
            from pg_catalog.pg_proc as p
            where
                p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace
                and p.proname = 'pg_logical_emit_message'
            union all
            select m.oid, 2, m.xmin::text::bigint
            from pg_catalog.pg_largeobject_metadata as m
            where m.oid = secret.oid
        ) as object
        order by object.oid, object.place
    ) as versions,
    array(
        select u.name
        from pg_catalog.unnest(%(functions)s::text[]) as u (name)
        where not exists (
            select from pg_catalog.pg_proc as p
            where p.pronamespace = n.oid and p.proname = u.name
        )
        union all
        select 'schema_log'
        where not exists (
            select from pg_catalog.pg_class as c
            where
                c.relnamespace = n.oid and c.relname = 'schema_log' and c.relpersistence = 'u'
        )
        union all
        select 'pgstream_schema_ddl' where ddl.oid is null
        union all
        select 'pgstream_schema_drop' where dropping.oid is null
        union all
        select 'token'
        where not exists (
            select from pg_catalog.pg_largeobject_metadata as m where m.oid = secret.oid
        )
    ) as missing,
    exists (
        select from pg_catalog.pg_class as c
        where c.relnamespace = n.oid and c.relname = 'schema_log' and c.relpersistence <> 'u'
    ) as has_other_log,
    pg_catalog.pg_get_userbyid(n.nspowner)::text as owner,
    current_user::text as role,
    r.rolsuper as is_superuser,
    pg_catalog.has_database_privilege(
        pg_catalog.current_database()::text, 'CREATE'
    ) as may_create,
    pg_catalog.current_database()::text as database,
    pg_catalog.pg_is_in_recovery() as is_standby
from pg_catalog.pg_roles as r
left join pg_catalog.pg_namespace as n on n.nspname = 'pgstream'
left join pg_catalog.pg_event_trigger as ddl on ddl.evtname = 'pgstream_schema_ddl'
left join pg_catalog.pg_event_trigger as dropping on dropping.evtname = 'pgstream_schema_drop'
cross join lateral (
    select
        substring(
            pg_catalog.obj_description(ddl.oid, 'pg_event_trigger') from '"token": ([0-9]+)'
        )::pg_catalog.oid as oid
) as secret
where r.rolname = current_user
