-- SQL of values that the careful part of a generated function has computed. No row.
create or replace function pgstream.value_codes(first integer, last integer) returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
return (
    select coalesce(array_agg(format('values_of_row[%s]', n) order by n), '{}')
    from generate_series(first, last) as n
)
