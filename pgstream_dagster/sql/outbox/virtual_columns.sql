-- The columns of a table that are generated when they are read: a trigger does not have their values.
-- An array of names, in no row.
create or replace function pgstream.virtual_columns(relation oid) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
return array(
    select a.attname::text
    from pg_attribute as a
    where a.attrelid = relation and a.attgenerated = 'v' and not a.attisdropped
    order by a.attnum
)
