-- The names that tables of the source have now; no row for one that was dropped.
--   %(relation_ids)s  bigint[]
select
    c.oid::bigint as relation_id,
    n.nspname::text as namespace,
    c.relname::text as name
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.oid = any(%(relation_ids)s::bigint[]::oid[]) and c.relkind in ('r', 'p')
