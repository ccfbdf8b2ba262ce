-- The indexes and sequences that belong to tables of the target; they are in the table's namespace.
-- `free_name` is one that no other has. `is_taken`: another relation of `namespace` has the name.
--   %(table_oids)s  bigint[]
--   %(namespace)s   text
select
    case c.relkind when 'S' then 'sequence' else 'index' end as kind,
    n.nspname::text as namespace,
    c.relname::text as name,
    pg_catalog.format('pgstream_%%s', c.oid) as free_name,
    exists (
        select from pg_catalog.pg_class as o
        where
            o.relname = c.relname
            and o.relnamespace = pg_catalog.to_regnamespace(pg_catalog.quote_ident(%(namespace)s))
    ) as is_taken
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
left join pg_catalog.pg_index as i on i.indexrelid = c.oid
left join pg_catalog.pg_depend as d
    on
        c.relkind = 'S' and d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
        and d.refclassid = 'pg_catalog.pg_class'::regclass and d.deptype in ('a', 'i')
where
    c.relkind in ('i', 'I', 'S')
    and coalesce(i.indrelid, d.refobjid) = any(%(table_oids)s::bigint[]::oid[])
order by c.oid
