-- Remove the table if it is ours, and the schema if nothing else is in it and it is ours. No row.
do $do$
begin
    if exists (
        select from pg_catalog.pg_class as c
        where
            c.oid = pg_catalog.to_regclass('pgstream.schema_log') and c.relpersistence = 'u'
    ) then
        drop table pgstream.schema_log;
    end if;
    if exists (
        select from pg_catalog.pg_namespace as n
        where
            n.nspname = 'pgstream' and pg_catalog.pg_has_role(n.nspowner, 'USAGE')
            and not exists (
                select from pg_catalog.pg_depend as d
                where
                    d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
                    and d.refobjid = n.oid
            )
    ) then
        drop schema pgstream;
    end if;
end
$do$
