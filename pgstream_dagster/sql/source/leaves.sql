-- Which of some relations are leaves of a partitioned table, or may have been: those that were
-- detached since, and those that are gone. No row when the table is no partitioned one.
-- A table that is gone itself may have been one; what was its leaf went with it. Not told: a leaf
-- that is another tree's by now.
--   %(relation_id)s  bigint    oid of the table
--   %(candidates)s   bigint[]  oids of the relations
select u.oid
from unnest(%(candidates)s::bigint[]) as u (oid)
left join pg_catalog.pg_class as leaf on leaf.oid = u.oid::oid
left join pg_catalog.pg_class as root on root.oid = %(relation_id)s::bigint::oid
where
    case
        when root.oid is null then leaf.oid is null
        when root.relkind <> 'p' then false
        when leaf.oid is null then true
        else
            not leaf.relispartition
            or root.oid in (
                select a.relid
                from pg_catalog.pg_partition_ancestors(leaf.oid) as a (relid)
            )
    end
