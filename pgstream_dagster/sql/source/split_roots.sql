-- Names of the partitioned tables among these whose partitions the publication has as tables of
-- their own.
--   %(publication)s   text      name
--   %(relation_ids)s  bigint[]  tables
select distinct pg_catalog.format('%%s.%%s', n.nspname, root.relname)
from pg_catalog.pg_publication_tables as t
join pg_catalog.pg_namespace as leaf_n on leaf_n.nspname = t.schemaname
join pg_catalog.pg_class as leaf
    on leaf.relnamespace = leaf_n.oid and leaf.relname = t.tablename and leaf.relispartition
cross join lateral pg_catalog.pg_partition_ancestors(leaf.oid) as a
join pg_catalog.pg_class as root on root.oid = a.relid and root.oid <> leaf.oid
join pg_catalog.pg_namespace as n on n.oid = root.relnamespace
where
    t.pubname = %(publication)s
    and root.oid = any(%(relation_ids)s::bigint[]::oid[])
order by 1
