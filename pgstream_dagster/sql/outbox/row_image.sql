-- A row as JSON, of which each column that has no JSON is null: such as text of type json that
-- `jsonb` does not take, or more than fits into one value. No row.
create or replace function pgstream.row_image(given anyelement) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    column_name text;
    value jsonb;
    result jsonb := '{}';
begin
    begin
        return to_jsonb(given);
    exception when others or assert_failure then
        null;
    end;
    for column_name in
        select a.attname
        from pg_attribute as a inner join pg_class as c on a.attrelid = c.oid
        where c.reltype = pg_typeof(given) and a.attnum > 0 and not a.attisdropped
    loop
        begin
            execute format('select to_jsonb(($1).%I)', column_name) into value using given;
            result := result || jsonb_build_object(column_name, value);
        exception when others or assert_failure then
            result := result || jsonb_build_object(column_name, null);
        end;
    end loop;
    return result;
end
$function$
