-- SQL that builds a JSON object. No row.
--   paths  text[]  of the fields, with dots; none is the beginning of another
--   codes  text[]  SQL of the value of each
-- A call takes 100 arguments at most, so larger objects are put together from several.
create or replace function pgstream.object_code(paths text[], codes text[]) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $function$
declare
    field record;
    pairs text[] := '{}';
    calls text;
    call_count integer;
begin
    for field in
        select
            split_part(p.path, '.', 1) as name,
            bool_and(strpos(p.path, '.') = 0) as is_leaf,
            array_agg(substr(p.path, strpos(p.path, '.') + 1) order by p.number) as rests,
            array_agg(p.code order by p.number) as codes
        from unnest(paths, codes) with ordinality as p (path, code, number)
        group by 1
        order by min(p.number)
    loop
        pairs := pairs || format(
            '%L, %s', field.name,
            case
                when field.is_leaf then field.codes[1]
                else pgstream.object_code(field.rests, field.codes)
            end
        );
    end loop;
    select string_agg(c.code, E'\n|| ' order by c.number), count(*) into calls, call_count
    from (
        select
            (p.number - 1) / 50 as number,
            format(
                'pg_catalog.jsonb_build_object(%s)', string_agg(p.pair, ', ' order by p.number)
            ) as code
        from unnest(pairs) with ordinality as p (pair, number)
        group by 1
    ) as c;
    return case when call_count > 1 then format('(%s)', calls) else calls end;
end
$function$
