-- The tables of this database that a transaction locks against readers now: name, server process id
-- (0: a prepared transaction, which has none). No row: there are none.
select distinct n.nspname || '.' || c.relname, coalesce(l.pid, 0)
from pg_catalog.pg_locks as l
join pg_catalog.pg_class as c on c.oid = l.relation and c.relkind in ('r', 'p')
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace and n.nspname !~ '^pg_toast'
where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and l.granted
    and l.database = (
        select d.oid from pg_catalog.pg_database as d
        where d.datname = pg_catalog.current_database()
    )
