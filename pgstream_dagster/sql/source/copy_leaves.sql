-- Where the rows of a relation are stored: itself, or the leaves of its partition tree.
--   %(relation)s  oid
-- Rows: oid, namespace, name, pages now, and whether this role may read it by its own name. No row: the
-- relation does not exist, or is a partitioned table without partitions.
with recursive tree as (
    select %(relation)s::pg_catalog.oid as oid
    union all
    select i.inhrelid
    from tree
    join pg_catalog.pg_class as p on p.oid = tree.oid and p.relkind = 'p'
    join pg_catalog.pg_inherits as i on i.inhparent = tree.oid and not i.inhdetachpending
)
select c.oid::pg_catalog.int8, n.nspname, c.relname,
       pg_catalog.pg_relation_size(c.oid, 'main')
           / pg_catalog.current_setting('block_size')::pg_catalog.int8,
       pg_catalog.has_table_privilege(c.oid, 'select')
       and pg_catalog.has_schema_privilege(n.oid, 'usage')
from tree
join pg_catalog.pg_class as c on c.oid = tree.oid and c.relkind = 'r'
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
order by c.oid
