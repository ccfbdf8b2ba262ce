-- Extensions whose expressions have columns of new and old under other names. Null for null.
--   renamed  jsonb  former name to current name
create or replace function pgstream.rename_extensions(extensions jsonb, renamed jsonb) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
return (
    select coalesce(
        jsonb_agg(
            e.value || jsonb_build_object(
                'expression', pgstream.rename_columns(e.value ->> 'expression', renamed)
            )
            order by e.number
        ),
        extensions
    )
    from jsonb_array_elements(extensions) with ordinality as e (value, number)
)
