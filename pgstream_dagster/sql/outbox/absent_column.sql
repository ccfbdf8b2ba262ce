-- A column of new or old that an expression names and the table lacks; null if there is none. For a
-- message: Postgres takes such a `new.x` for a column of a table `new`. No row.
create or replace function pgstream.absent_column(relation oid, expression text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
return (
    select min(n.name)
    from
        regexp_matches(
            expression,
            '\m(?:new|old)\s*\.\s*("(?:[^"]|"")+"|[[:alpha:]_][[:alnum:]_$]*)', 'gi'
        ) as m (parts)
    cross join lateral (
        select case
            when m.parts[1] like '"%' then replace(btrim(m.parts[1], '"'), '""', '"')
            else lower(m.parts[1])
        end as name
    ) as n
    where not exists (
        select from pg_attribute as a
        where a.attrelid = relation and a.attname = n.name and not a.attisdropped
    )
)
