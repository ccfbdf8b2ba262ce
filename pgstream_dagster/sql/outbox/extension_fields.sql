-- One field of all extensions, in their order; an empty array if there are none. No row.
create or replace function pgstream.extension_fields(extensions jsonb, field text) returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
return (
    select coalesce(array_agg(e.value ->> field order by e.number), '{}')
    from jsonb_array_elements(extensions) with ordinality as e (value, number)
)
