-- The id of the current (sub-)transaction, for a report without a row in `pgstream.schema_log`.
create or replace function pgstream.ddl_xid() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    current_xid bigint;
    added bigint;
begin
    insert into pgstream.schema_log (schema_name, schema) values ('', '{}')
    returning xmin::text::bigint, version into current_xid, added;
    delete from pgstream.schema_log as l where l.version = added;
    return current_xid;
end
$function$
