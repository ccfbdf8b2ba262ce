-- The stored shape of a relation and of its partitions, as the session's snapshot sees it.
--   %(relation)s  oid
-- One row per relation of the tree: oid, relkind, relfilenode, whether it is leaving the tree (DETACH
-- CONCURRENTLY has begun, of itself or of a partition above it), and a text of everything a copy
-- depends on (name, parent, columns, identity, key indexes, NOT NULL that is not validated).
-- No row: the relation does not exist.
-- Reads tables only: catalog functions show the present, not the snapshot.
with recursive tree as (
    select %(relation)s::pg_catalog.oid as oid,
           null::pg_catalog.oid as parent,
           false as is_leaving
    union all
    select i.inhrelid, i.inhparent, tree.is_leaving or i.inhdetachpending
    from tree
    join pg_catalog.pg_class as p on p.oid = tree.oid and p.relkind = 'p'
    join pg_catalog.pg_inherits as i on i.inhparent = tree.oid
)
select c.oid, c.relkind::text, c.relfilenode, tree.is_leaving,
       pg_catalog.json_build_array(
           tree.parent, tree.is_leaving, c.relnamespace, c.relname, c.relreplident, c.relpersistence,
           (select pg_catalog.json_agg(pg_catalog.json_build_array(
                       a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated
                   ) order by a.attnum)
            from pg_catalog.pg_attribute as a
            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
           (select pg_catalog.json_agg(pg_catalog.json_build_array(
                       x.indexrelid, x.indisprimary, x.indisreplident, x.indimmediate, x.indkey::text
                   ) order by x.indexrelid)
            from pg_catalog.pg_index as x
            where x.indrelid = c.oid and (x.indisprimary or x.indisreplident)),
           (select pg_catalog.json_agg(nn.conkey order by nn.conkey)
            from pg_catalog.pg_constraint as nn
            where nn.conrelid = c.oid and nn.contype = 'n' and not nn.convalidated)
       )::text
from tree
join pg_catalog.pg_class as c on c.oid = tree.oid
order by c.oid
