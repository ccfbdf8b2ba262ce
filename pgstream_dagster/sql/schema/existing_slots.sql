-- Those of these slots that exist in this database; no row: none does.
--   %(slots)s  text[]  names
select s.slot_name::text
from pg_catalog.pg_replication_slots as s
where s.slot_name = any(%(slots)s) and s.database = pg_catalog.current_database()
