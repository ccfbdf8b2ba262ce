-- How each type is written, modifier and namespace included, and how its values' text is written;
-- nulls for a type that no longer exists.
-- `value_type`: the name of the base type, with domains followed; `enum`, `composite`; `range` and
-- `multirange` of users' own, whose bounds may be anything; for an array the element's and '[]'.
--   %(type_oids)s  bigint[]  types
--   %(typmods)s    int[]     their modifiers, in the same order
with recursive asked as (
    select u.place, u.type_oid::oid as oid, u.typmod
    from unnest(%(type_oids)s::bigint[], %(typmods)s::int[])
        with ordinality as u (type_oid, typmod, place)
),

step as (
    select asked.place, asked.oid, '' as brackets
    from asked
    union all
    -- An array is a type that another names as its array: int2vector has elements and is none.
    select
        step.place,
        case when t.typtype = 'd' then t.typbasetype else t.typelem end,
        case when t.typtype = 'd' then step.brackets else step.brackets || '[]' end
    from step
    join pg_catalog.pg_type as t on t.oid = step.oid
    where
        t.typtype = 'd'
        or exists (
            select from pg_catalog.pg_type as e where e.oid = t.typelem and e.typarray = t.oid
        )
)

select
    case when named.oid is not null then pg_catalog.format_type(named.oid, asked.typmod) end
    as type_name,
    last_step.value_type
from asked
left join pg_catalog.pg_type as named on named.oid = asked.oid
left join lateral (
    select
        case
            when t.typtype = 'e' then 'enum'
            when t.typtype = 'c' then 'composite'
            when t.typtype = 'r' and t.typnamespace <> 'pg_catalog'::regnamespace then 'range'
            when t.typtype = 'm' and t.typnamespace <> 'pg_catalog'::regnamespace then 'multirange'
            else t.typname::text
        end || step.brackets as value_type
    from step
    join pg_catalog.pg_type as t on t.oid = step.oid
    where
        step.place = asked.place and t.typtype <> 'd'
        and not exists (
            select from pg_catalog.pg_type as e where e.oid = t.typelem and e.typarray = t.oid
        )
) as last_step on true
order by asked.place
