-- Add a row to `pgstream.schema_log` for each schema of the tables that a command affected or dropped;
-- the id of the current (sub-)transaction, which no function of Postgres gives.
create or replace function pgstream.ddl_log(affected oid[], dropped jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    current_xid bigint;
begin
    with namespace as (
        select n.nspname::text as name
        from pg_class as c inner join pg_namespace as n on c.relnamespace = n.oid
        where c.oid = any(affected)
        union
        select d.value ->> 'namespace' from jsonb_array_elements(dropped) as d
    ),

    added as (
        insert into pgstream.schema_log (schema_name, schema)
        select n.name, pgstream.ddl_schema(n.name, affected) from namespace as n
        order by n.name
        returning xmin::text::bigint as xid
    )

    select max(a.xid) into current_xid from added as a;
    return current_xid;
end
$function$
