-- The expressions of all extensions in parentheses, in their order. No row.
create or replace function pgstream.wrapped_fields(extensions jsonb) returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
return (
    select coalesce(array_agg(format(E'(%s\n)', x.expression) order by x.number), '{}')
    from
        unnest(pgstream.extension_fields(extensions, 'expression'))
        with ordinality as x (expression, number)
)
