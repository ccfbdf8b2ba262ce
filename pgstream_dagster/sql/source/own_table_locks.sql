-- The oids of the tables that this session has locked, at least against rewrites.
select distinct l.relation
from pg_catalog.pg_locks as l
where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'relation' and l.granted
