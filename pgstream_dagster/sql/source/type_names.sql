-- How each type is written, modifier and namespace included; null for a type that is gone.
--   %(type_oids)s  bigint[]  types
--   %(typmods)s    int[]     their modifiers, in the same order
select
    case
        when exists (
            select from pg_catalog.pg_type as t where t.oid = u.type_oid::oid
        ) then pg_catalog.format_type(u.type_oid::oid, u.typmod)
    end
from unnest(%(type_oids)s::bigint[], %(typmods)s::int[])
    with ordinality as u (type_oid, typmod, place)
order by u.place
