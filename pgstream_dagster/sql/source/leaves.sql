-- Which of some relations are leaves of a partitioned table, or may have been: those that were
-- detached since, those that no longer exist, and those `beside` that are another tree's by now.
-- No row when the table is not partitioned. A table that no longer exists may have been
-- partitioned; its leaves were dropped with it.
--   %(relation_id)s  bigint    oid of the table
--   %(candidates)s   bigint[]  oids of the relations
--   %(beside)s       bigint[]  those that were described right before a row of the table
select u.oid
from unnest(%(candidates)s::bigint[]) as u (oid)
left join pg_catalog.pg_class as leaf on leaf.oid = u.oid::oid
left join pg_catalog.pg_class as root on root.oid = %(relation_id)s::bigint::oid
where
    case
        when root.oid is null then leaf.oid is null
        when root.relkind <> 'p' then false
        when leaf.oid is null or u.oid = any(%(beside)s::bigint[]) then true
        else
            not leaf.relispartition
            or root.oid in (
                select a.relid
                from pg_catalog.pg_partition_ancestors(leaf.oid) as a (relid)
            )
    end
