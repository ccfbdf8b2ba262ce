-- SQL of the image of a row: those columns of the subscription, or all. No row.
--   variable  text    'new' or 'old'
--   without   text[]  columns that are not among all
create or replace function pgstream.image_code(
    variable text, column_names text[], without text[]
) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $function$
declare
    calls text;
begin
    if column_names is null and cardinality(without) > 0 then
        return format(
            '(pg_catalog.to_jsonb(%s) OPERATOR(pg_catalog.-) %L::pg_catalog.text[])',
            variable, without
        );
    elsif column_names is null then
        return format('pg_catalog.to_jsonb(%s)', variable);
    end if;
    select string_agg(c.code, E'\n|| ' order by c.number) into calls
    from (
        select
            (n.number - 1) / 50 as number,
            format(
                'pg_catalog.jsonb_build_object(%s)',
                string_agg(format('%L, %s.%I', n.name, variable, n.name), ', ' order by n.number)
            ) as code
        from unnest(column_names) with ordinality as n (name, number)
        group by 1
    ) as c;
    return '(' || coalesce(calls, '''{}''::pg_catalog.jsonb') || ')';
end
$function$
