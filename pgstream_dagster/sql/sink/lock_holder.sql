-- The session that has the right to write for a sink; no row when none has.
--   %(name)s  text  pipeline and sink
select a.pid, coalesce(a.client_addr::text, 'local'), coalesce(a.application_name, '')
from pg_catalog.pg_locks as l
join pg_catalog.pg_stat_activity as a on a.pid = l.pid
cross join (select pg_catalog.hashtextextended(%(name)s, 0) as key) as k
where
    l.locktype = 'advisory' and l.granted and l.objsubid = 1
    and l.database = (
        select d.oid from pg_catalog.pg_database as d
        where d.datname = pg_catalog.current_database()
    )
    and l.classid::bigint = (k.key >> 32) & 4294967295
    and l.objid::bigint = k.key & 4294967295
