-- Remove the type, and the schema if nothing else is in it and it is ours. No row.
do $do$
begin
    drop type pgstream.operation_type;
    if not exists (
        select from pg_catalog.pg_depend as d
        where
            d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
            and d.refobjid = 'pgstream'::pg_catalog.regnamespace and d.deptype = 'n'
    ) and pg_catalog.pg_has_role(
        (select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'pgstream'), 'USAGE'
    ) then
        drop schema pgstream;
    end if;
end
$do$
