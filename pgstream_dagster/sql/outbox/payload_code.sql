-- SQL of the payload of a subscription's event. No row.
--   new_code, old_code  text    SQL of the images
--   values_code         text[]  SQL of the value of each extension
create or replace function pgstream.payload_code(
    given pgstream.subscriptions, new_code text, old_code text, values_code text[]
) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    is_parent boolean := exists (
        select from pg_class as c where c.oid = given.table_oid and c.relkind = 'p'
    );
begin
    return pgstream.object_code(
        array['tg_name', 'tg_op', 'tg_table_name', 'tg_table_schema', 'timestamp', 'new', 'old']
        || pgstream.extension_fields(given.payload_extensions, 'json_path'),
        array[
            quote_literal(given.key),
            quote_literal(given.operation),
            -- A trigger of a partition has the partition's name.
            case when is_parent then quote_literal(given.table_name) else 'tg_table_name' end,
            case when is_parent then quote_literal(given.schema_name) else 'tg_table_schema' end,
            '(pg_catalog.date_part(''epoch'', pg_catalog.now()) * 1000)::pg_catalog.int8',
            new_code,
            old_code
        ]
        || values_code
    );
end
$function$
