-- How many rows the running COPYs of a scan have sent.
--   %(application_name)s  text  of the sessions of its tasks
-- Always one row; 0 when no COPY runs.
select coalesce(sum(p.tuples_processed), 0)::pg_catalog.int8
from pg_catalog.pg_stat_progress_copy as p
join pg_catalog.pg_stat_activity as a on a.pid = p.pid
where a.application_name = %(application_name)s
