-- The transactions that lock a table or its partitions against readers now.
--   %(relation)s  oid
-- Rows: server process ids (0: a prepared transaction, which has none). No row: the lock was released
-- meanwhile.
with recursive tree as (
    select %(relation)s::pg_catalog.oid as oid
    union all
    select i.inhrelid
    from tree
    join pg_catalog.pg_class as p on p.oid = tree.oid and p.relkind = 'p'
    join pg_catalog.pg_inherits as i on i.inhparent = tree.oid
)
select distinct coalesce(l.pid, 0) as pid
from pg_catalog.pg_locks as l
join tree on tree.oid = l.relation
where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and l.granted
    and l.database = (
        select d.oid from pg_catalog.pg_database as d
        where d.datname = pg_catalog.current_database()
    )
order by pid
