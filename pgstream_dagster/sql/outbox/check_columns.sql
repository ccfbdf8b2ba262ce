-- The numbers of the columns of a subscription, null for all; raises for one that is not there.
create or replace function pgstream.check_columns(place text, relation oid, column_names text[])
returns smallint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    missing text;
begin
    select name into missing
    from unnest(column_names) as name
    where not exists (
        select from pg_attribute as a
        where a.attrelid = relation and a.attname = name and a.attnum > 0 and not a.attisdropped
    )
    limit 1;
    if found then
        raise undefined_column using
            message = format('%s: column %L does not exist', place, coalesce(missing, 'null')),
            detail = format('The table is %s.', relation::regclass),
            hint = 'Names are compared as they are written, with upper and lower case.';
    end if;
    select name into missing
    from unnest(column_names) as name
    inner join pg_attribute as a on a.attname = name
    where a.attrelid = relation and a.attgenerated = 'v'
    limit 1;
    if found then
        raise feature_not_supported using
            message = format('%s: column %L is generated when it is read', place, missing),
            detail = 'A trigger does not have its value.',
            hint = 'Leave it out, or make it a stored generated column.';
    end if;
    if (select count(*) <> count(distinct name) from unnest(column_names) as name) then
        raise duplicate_column using
            message = format('%s: a column is named twice', place),
            hint = 'Name each column once.';
    end if;
    if column_names is null then
        return null;
    end if;
    return (
        select coalesce(array_agg(a.attnum order by n.number), '{}')
        from unnest(column_names) with ordinality as n (name, number)
        inner join pg_attribute as a on a.attname = n.name
        where a.attrelid = relation and a.attnum > 0
    );
end
$function$
