-- The columns of a table as an object from number to name; empty for a table that is gone. No row.
create or replace function pgstream.table_columns(relation oid) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
return (
    select coalesce(jsonb_object_agg(a.attnum, a.attname), '{}')
    from pg_attribute as a
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
)
