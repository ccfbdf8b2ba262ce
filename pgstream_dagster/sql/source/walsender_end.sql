-- End the session that reads one slot, if it still is this server process.
--   %(slot)s  text  slot name
--   %(pid)s   int   its process
select pg_catalog.pg_terminate_backend(s.active_pid)
from pg_catalog.pg_replication_slots as s
where s.slot_name = %(slot)s and s.active_pid = %(pid)s
