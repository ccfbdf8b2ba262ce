-- The foreign keys of other tables of the target that refer to a table.
--   %(table_oid)s  bigint
select
    n.nspname::text as namespace,
    c.relname::text as relation,
    k.conname::text as name
from pg_catalog.pg_constraint as k
join pg_catalog.pg_class as c on c.oid = k.conrelid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where
    k.contype = 'f' and k.confrelid = %(table_oid)s::bigint::oid and k.conrelid <> k.confrelid
    and k.conparentid = 0
order by n.nspname, c.relname, k.conname
