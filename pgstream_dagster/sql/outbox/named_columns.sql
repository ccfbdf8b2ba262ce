-- The columns of new and old that an expression names, as the catalog has names; no row: none.
create or replace function pgstream.named_columns(expression text) returns table (name text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $function$
    select case
        when m.parts[1] like '"%' then replace(btrim(m.parts[1], '"'), '""', '"')
        else lower(m.parts[1])
    end
    from
        regexp_matches(
            expression,
            '\m(?:new|old)\s*\)?\s*\.\s*("(?:[^"]|"")+"|[[:alpha:]_][[:alnum:]_$]*)', 'gi'
        ) as m (parts);
$function$
