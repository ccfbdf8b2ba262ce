-- How the values of types are written, and the labels of enums: as `source/types` has it, with the
-- labels of the enum that a domain or an array is of. One row for each type.
create or replace function pgstream.ddl_types(types oid[])
returns table (type_oid oid, value_type text, labels jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
begin
    return query
    with recursive step as (
        select asked.oid as asked, asked.oid, '' as brackets
        from (select distinct u.oid from unnest(types) as u (oid)) as asked
        union all
        -- An array is a type that another names as its array: int2vector has elements and is none.
        select
            s.asked,
            case when t.typtype = 'd' then t.typbasetype else t.typelem end,
            case when t.typtype = 'd' then s.brackets else s.brackets || '[]' end
        from step as s
        inner join pg_type as t on s.oid = t.oid
        where
            t.typtype = 'd'
            or exists (select from pg_type as e where e.oid = t.typelem and e.typarray = t.oid)
    )

    select
        s.asked,
        case
            when t.typtype = 'e' then 'enum'
            when t.typtype = 'c' then 'composite'
            when t.typtype = 'r' and t.typnamespace <> 'pg_catalog'::regnamespace then 'range'
            when t.typtype = 'm' and t.typnamespace <> 'pg_catalog'::regnamespace then 'multirange'
            else t.typname::text
        end || s.brackets,
        case
            when t.typtype = 'e' then (
                select jsonb_agg(e.enumlabel order by e.enumsortorder)
                from pg_enum as e where e.enumtypid = t.oid
            )
        end
    from step as s
    inner join pg_type as t on s.oid = t.oid
    where
        t.typtype <> 'd'
        and not exists (select from pg_type as e where e.oid = t.typelem and e.typarray = t.oid);
end
$function$
