-- SQL of the metadata of a subscription's event: what the row gives over what is given. No row.
--   values_code  text[]  SQL of the value of each extension
create or replace function pgstream.metadata_code(
    given pgstream.subscriptions, values_code text[]
) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    paths text[] := pgstream.extension_fields(given.metadata_extensions, 'json_path');
    constant_code text := format('%L::pg_catalog.jsonb', given.metadata);
    computed_code text;
begin
    if given.operation <> 'TRUNCATE' and exists (
        select from pg_class as c where c.oid = given.table_oid and c.relkind = 'p'
    ) then
        paths := paths || 'tg_leaf'::text;
        values_code := values_code || 'tg_table_name'::text;
    end if;
    if given.metadata is null and paths = '{}' then
        return 'null';
    elsif paths = '{}' then
        return constant_code;
    end if;
    computed_code := pgstream.object_code(paths, values_code);
    return case
        when given.metadata is null then computed_code
        when exists (select from unnest(paths) as p where given.metadata ? split_part(p, '.', 1))
            then format('pgstream.deep_merge(%s, %s)', constant_code, computed_code)
        else format('%s OPERATOR(pg_catalog.||) %s', constant_code, computed_code)
    end;
end
$function$
