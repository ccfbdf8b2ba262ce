-- The columns of a row's image that still exist, under their current names. No row.
--   image    jsonb       the whole row
--   numbers  smallint[]  of the columns; null for all
-- For a row that the generated function could not take as it was compiled.
create or replace function pgstream.picked(image jsonb, relation oid, numbers smallint[])
returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
return case
    when image is null or numbers is null then image - pgstream.virtual_columns(relation)
    else coalesce(
        (
            select jsonb_object_agg(a.attname, image -> a.attname::text)
            from pg_attribute as a
            where
                a.attrelid = relation and a.attnum = any(numbers) and not a.attisdropped
                and image ? a.attname::text
        ),
        '{}'
    )
end
