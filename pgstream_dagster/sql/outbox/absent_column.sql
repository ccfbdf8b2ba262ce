-- A column of new or old that an expression names and the table lacks; null if there is none. For a
-- message: Postgres takes such a `new.x` for a column of a table `new`. No row.
create or replace function pgstream.absent_column(relation oid, expression text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
return (
    select min(n.name)
    from pgstream.named_columns(expression) as n
    where not exists (
        select from pg_attribute as a
        where a.attrelid = relation and a.attname = n.name and not a.attisdropped
    )
)
